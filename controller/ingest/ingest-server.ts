import type { Server } from "@grpc/grpc-js";
import type { TokenVerifier } from "../../runtime/capability-token.ts";
import type { Logger } from "../../runtime/log.ts";
import type { AppendResult, CallStore } from "../store/call-store.ts";

/** The policy that sidecars send calls to. */
export interface ServedPolicy {
  readonly model: string;
  readonly version: number;
  readonly endpoints: readonly {
    /** Base URL up to and including /v1. */
    readonly url: string;
    readonly apiKey?: string;
    /** Model name to ask this engine for. */
    readonly model?: string;
  }[];
}

/** What every sidecar is told when it connects. */
export interface CaptureRules {
  /** Default false: token ids say all that training needs, at a twentieth of the bytes. */
  readonly captureText?: boolean;
  readonly redactionPatterns?: readonly string[];
  readonly trainOverrides?: Readonly<Record<string, unknown>>;
  readonly evalOverrides?: Readonly<Record<string, unknown>>;
  readonly requireCanary?: boolean;
  readonly deduplicateRetries?: boolean;
}

export interface RolloutBinding {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly sidecarId: string;
  readonly mode: "train" | "eval";
}

export interface IngestOptions {
  readonly store: CallStore;
  readonly verifier: TokenVerifier;
  readonly tokenPublicKeyPem: string;
  readonly capture: CaptureRules;
  readonly policy?: ServedPolicy;
  readonly log: Logger;
  /** Called after a commit with what was new in it. */
  readonly onCommitted?: (result: AppendResult) => void;
  /** A batch is committed when it has so many records, … */
  readonly maxBatchRecords?: number;
  /** … or when its oldest record has waited so long. */
  readonly maxBatchDelayMs?: number;
}

export interface PauseOptions {
  readonly reason: string;
  /** How long the sidecars hold a call before they answer 429. */
  readonly holdLimitMs: number;
  /** After this, calls in flight that have sent nothing are aborted and re-issued; 0: never. */
  readonly drainLimitMs: number;
  /** How long to wait for every sidecar's report; default no limit. */
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

export interface PauseResult {
  /** True when every sidecar of the last `absenceLimitMs` has reported drained. */
  readonly drained: boolean;
  readonly sidecars: readonly {
    readonly sidecarId: string;
    readonly state: "drained" | "draining" | "away";
  }[];
}

export interface SidecarView {
  readonly sidecarId: string;
  readonly harnessUrl: string;
  readonly version: string;
  readonly connected: boolean;
  readonly paused: boolean;
  readonly drained: boolean;
  readonly inFlight: number;
  readonly held: number;
  readonly calls: number;
  readonly incompleteCalls: number;
  readonly droppedRecords: number;
  readonly spoolBytes: number;
  readonly engines: readonly {
    readonly url: string;
    readonly healthy: boolean;
    readonly canaryDone: boolean;
    readonly canaryProblem: string;
    readonly streamsIds: boolean;
  }[];
}

export interface IngestServer {
  /** Shuts the gate of every sidecar, those that connect later included, and waits for drained. */
  pause(options: PauseOptions): Promise<PauseResult>;
  resume(): void;
  /** To all connected sidecars now, and to later ones in their welcome. */
  publishPolicy(policy: ServedPolicy): void;
  publishBindings(bindings: readonly RolloutBinding[]): void;
  sidecars(): readonly SidecarView[];
  /** Resolves with the sidecars when at least `count` are connected; rejects when aborted. */
  waitForSidecars(count: number, signal?: AbortSignal): Promise<readonly SidecarView[]>;
  /** Resolves when everything received so far is committed. */
  flush(): Promise<void>;
  /** Commits what was received and ends every stream. The gRPC server itself is the caller's. */
  close(): Promise<void>;
}

/** Adds the SampleStream service to a gRPC server that is not bound yet. */
export function serveSampleStream(server: Server, options: IngestOptions): IngestServer {
  throw new Error(`not usable yet ${String(server)} ${String(options)}`);
}
