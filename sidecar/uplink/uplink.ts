import type { ChannelCredentials } from "@grpc/grpc-js";
import type {
  BindingUpdate,
  EngineHealth,
  GateCommand,
  PolicyUpdate,
  Welcome,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Logger } from "../../runtime/log.ts";
import type { FinishedCall } from "../capture/finished-call.ts";

/** What the controller says. Called in order, never while `openUplink` runs. */
export interface UplinkHandlers {
  /**
   * On every connection; and once at start with `cached` true from the last run's copy, so that a
   * sidecar restarted while the controller is away can serve (its gate is then open).
   */
  onWelcome(welcome: Welcome, source: { readonly cached: boolean }): void;
  onGate(command: GateCommand): void;
  onPolicy(update: PolicyUpdate): void;
  onBindings(update: BindingUpdate): void;
  onConnection?(connected: boolean): void;
}

export interface UplinkOptions {
  /** `host:port` of the controller's gRPC server. */
  readonly controllerAddress: string;
  /** TLS or mTLS outside loopback; plain by default. */
  readonly credentials?: ChannelCredentials;
  /** Capability token with scope `sidecar`; asked for at each connection. */
  readonly token: () => string;
  /** Asked for at each connection. */
  readonly hello: () => {
    readonly sidecarId: string;
    readonly harnessUrl: string;
    readonly version: string;
  };
  readonly spoolDir: string;
  /** Bound of the spool on disk; default 1 GiB. */
  readonly spoolMaxBytes?: number;
  readonly handlers: UplinkHandlers;
  readonly log: Logger;
  readonly now?: () => number;
  readonly random?: () => number;
}

/** Whether a record is safe on disk; where it is not, it is lost, counted and logged. */
export type RecordOutcome =
  | { readonly kept: true }
  | {
      readonly kept: false;
      readonly reason: "spool-full" | "disk-full" | "spool-io-error" | "uplink-closed";
    };

export interface GateReportInput {
  readonly commandId: string;
  readonly paused: boolean;
  readonly drained: boolean;
  readonly inFlight: number;
  readonly held: number;
}

/** The uplink adds what it knows itself: dropped records and bytes in the spool. */
export interface SidecarReportInput {
  readonly calls: number;
  readonly incompleteCalls: number;
  readonly inFlight: number;
  readonly engines: readonly EngineHealth[];
}

/** Something other than a call: a reward or an event posted by the harness, a refused identity. */
export interface SidecarEvent {
  /** Unique in the world: the idempotency key. */
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}

export interface UplinkStatus {
  readonly connected: boolean;
  readonly spoolBytes: number;
  readonly spoolMaxBytes: number;
  /** True from 90 % of the bound on until below 80 %: new calls should be held, not dropped. */
  readonly pressure: boolean;
  readonly unackedRecords: number;
  readonly droppedRecords: number;
}

export interface Uplink {
  /**
   * Writes the call to the spool before it returns: it survives kill -9 of the process from then
   * on. Never throws and never waits for the network.
   */
  record(call: FinishedCall): RecordOutcome;
  event(event: SidecarEvent): RecordOutcome;
  /** The latest one is sent again after a reconnection. */
  reportGate(report: GateReportInput): void;
  reportSidecar(report: SidecarReportInput): void;
  status(): UplinkStatus;
  /** Sends what is unacknowledged for at most `graceMs`, then closes; the rest stays spooled. */
  close(graceMs: number): Promise<void>;
}

export function openUplink(options: UplinkOptions): Uplink {
  throw new Error(`not usable yet: ${options.spoolDir}`);
}
