import { create } from "@bufbuild/protobuf";
import { type ChannelCredentials, credentials as grpcCredentials } from "@grpc/grpc-js";
import {
  type BindingUpdate,
  type ConnectRequest,
  type ConnectResponse,
  type EngineHealth,
  FlushReportSchema,
  type GateCommand,
  GateReportSchema,
  HelloSchema,
  type PolicyUpdate,
  SidecarReportSchema,
  type Welcome,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Logger } from "../../runtime/log.ts";
import { sleep } from "../../runtime/sleep.ts";
import type { FinishedCall } from "../capture/finished-call.ts";
import { reconnectDelayMs } from "./reconnect-delay.ts";
import { type RecordOutcome, RecordWriter, type SidecarEvent } from "./record-writer.ts";
import { openSpool, type Spool } from "./spool.ts";
import { type ConnectionEnd, UplinkConnection } from "./uplink-connection.ts";
import { openWelcomeCache, type WelcomeCache } from "./welcome-cache.ts";

/** What the controller says. Called in order, never while `openUplink` runs. Must not throw. */
export interface UplinkHandlers {
  /**
   * On every connection; and once at start with `cached` true from the last run's copy, so that a
   * sidecar restarted while the controller is away can serve (with its gate as it was: a weight
   * update may be under way).
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

const protocolVersion = 2;

/**
 * Opens the spool (an `OutriggerError` says why it cannot) and connects to the controller in the
 * background, for as long as it takes.
 */
export function openUplink(options: UplinkOptions): Uplink {
  const spool = openSpool({
    directory: options.spoolDir,
    log: options.log,
    ...(options.spoolMaxBytes !== undefined && { maxBytes: options.spoolMaxBytes }),
  });
  return new SpoolingUplink(options, spool, openWelcomeCache(options.spoolDir, options.log));
}

/**
 * Consumes finished calls, events and reports; produces spooled records and one stream to the
 * controller at a time. The connection loop waits for the end of a connection, then for the
 * backoff; both end when the uplink is closed.
 */
class SpoolingUplink implements Uplink {
  readonly #options: UplinkOptions;
  readonly #spool: Spool;
  readonly #cache: WelcomeCache;
  readonly #writer: RecordWriter;
  readonly #stop = new AbortController();
  readonly #loop: Promise<void>;
  #connection: UplinkConnection | undefined;
  #isConnected = false;
  #hasPressure = false;
  #isClosing = false;
  #gateReport: ConnectRequest["message"] | undefined;
  #sidecarReport: SidecarReportInput | undefined;
  #onProgress: (() => void) | undefined;

  constructor(options: UplinkOptions, spool: Spool, cache: WelcomeCache) {
    this.#options = options;
    this.#spool = spool;
    this.#cache = cache;
    this.#writer = new RecordWriter(spool, options.log, options.now ?? Date.now);
    spool.onAppend(() => this.#connection?.wake());
    this.#loop = this.#connectForever();
  }

  record(call: FinishedCall): RecordOutcome {
    return this.#writer.record(call);
  }

  event(event: SidecarEvent): RecordOutcome {
    return this.#writer.event(event);
  }

  reportGate(report: GateReportInput): void {
    this.#gateReport = { case: "gateReport", value: create(GateReportSchema, report) };
    this.#connection?.send(this.#gateReport);
  }

  reportSidecar(report: SidecarReportInput): void {
    this.#sidecarReport = report;
    this.#sendSidecarReport();
  }

  status(): UplinkStatus {
    const { bytes, maxBytes, lastSeq, ackedSeq } = this.#spool;
    this.#hasPressure = bytes > maxBytes * (this.#hasPressure ? 0.8 : 0.9);
    return {
      connected: this.#isConnected,
      spoolBytes: bytes,
      spoolMaxBytes: maxBytes,
      pressure: this.#hasPressure,
      unackedRecords: lastSeq - ackedSeq,
      droppedRecords: this.#writer.droppedCount,
    };
  }

  async close(graceMs: number): Promise<void> {
    if (!this.#isClosing) {
      this.#isClosing = true;
      this.#writer.reportLosses();
      await this.#untilAllAcked(graceMs);
      this.#stop.abort();
    }
    await this.#loop;
    this.#spool.close();
  }

  #sendSidecarReport(): void {
    const report = this.#sidecarReport;
    if (report === undefined) return;
    const value = create(SidecarReportSchema, {
      calls: BigInt(report.calls),
      incompleteCalls: BigInt(report.incompleteCalls),
      inFlight: report.inFlight,
      engines: [...report.engines],
      droppedRecords: BigInt(this.#writer.droppedCount),
      spoolBytes: BigInt(this.#spool.bytes),
    });
    this.#connection?.send({ case: "sidecarReport", value });
  }

  async #connectForever(): Promise<void> {
    const { log, handlers } = this.#options;
    const { signal } = this.#stop;
    // Handlers are never called while `openUplink` runs.
    await Promise.resolve();
    const cached = this.#cache.current;
    if (cached !== undefined) {
      this.#writer.applySettings(cached.capture);
      handlers.onWelcome(cached, { cached: true });
    }
    let failures = 0;
    while (!signal.aborted) {
      const end = await this.#connectOnce(signal);
      if (signal.aborted) break;
      failures = end.wasWelcomed ? 0 : failures + 1;
      const delayMs = reconnectDelayMs(
        end.isRefusal ? 10 : failures,
        (this.#options.random ?? Math.random)(),
      );
      const say = end.isRefusal ? "error" : failures > 1 ? "debug" : "warn";
      log[say]({ reason: end.reason, delayMs: Math.round(delayMs) }, "not connected to controller");
      await sleep(delayMs, signal);
    }
  }

  async #connectOnce(signal: AbortSignal): Promise<ConnectionEnd> {
    const { controllerAddress, credentials, token, hello, log, handlers } = this.#options;
    const connection = new UplinkConnection({
      address: controllerAddress,
      credentials: credentials ?? grpcCredentials.createInsecure(),
      token: token(),
      hello: create(HelloSchema, {
        ...hello(),
        protocolVersion,
        spoolId: this.#spool.spoolId,
        ackedSeq: BigInt(this.#spool.ackedSeq),
      }),
      spool: this.#spool,
      signal,
      onWelcome: (welcome) => {
        log.info({ controllerAddress }, "connected to controller");
        this.#isConnected = true;
        this.#welcome(welcome);
        handlers.onConnection?.(true);
      },
      onCommand: (message) => this.#command(message),
      onAcked: () => {
        // There may be room now for what could not be reported before.
        this.#writer.reportLosses();
        this.#onProgress?.();
      },
    });
    this.#connection = connection;
    const end = await connection.ended;
    this.#connection = undefined;
    if (this.#isConnected) {
      this.#isConnected = false;
      handlers.onConnection?.(false);
    }
    return end;
  }

  #welcome(welcome: Welcome): void {
    const known = this.#cache.current;
    // Another store does not have the records that this sidecar would refer to.
    if (known !== undefined && known.storeId !== welcome.storeId) this.#writer.forget();
    this.#cache.save(welcome);
    this.#writer.applySettings(welcome.capture);
    this.#options.handlers.onWelcome(welcome, { cached: false });
    if (this.#gateReport !== undefined) this.#connection?.send(this.#gateReport);
    this.#sendSidecarReport();
  }

  #command(message: ConnectResponse["message"]): void {
    const { handlers } = this.#options;
    const known = this.#cache.current;
    if (known === undefined) return;
    switch (message.case) {
      case "gateCommand":
        this.#cache.save({ ...known, gate: message.value });
        return handlers.onGate(message.value);
      case "policyUpdate":
        this.#cache.save({ ...known, policy: message.value });
        return handlers.onPolicy(message.value);
      case "bindingUpdate":
        this.#cache.save({ ...known, bindings: message.value.bindings });
        return handlers.onBindings(message.value);
      case "flushRequest": {
        const { flushId } = message.value;
        const lastSeq = BigInt(this.#spool.lastSeq);
        this.#connection?.send({
          case: "flushReport",
          value: create(FlushReportSchema, { flushId, lastSeq }),
        });
        return undefined;
      }
      case "welcome":
      case "ack":
      case undefined:
        // The connection's own; or a newer controller's message, not for this version.
        return undefined;
    }
  }

  async #untilAllAcked(graceMs: number): Promise<void> {
    if (graceMs <= 0) return;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.#onProgress = undefined;
        resolve();
      };
      const timer = setTimeout(done, graceMs);
      this.#onProgress = () => {
        if (this.#spool.ackedSeq >= this.#spool.lastSeq) done();
      };
      this.#onProgress();
    });
  }
}
