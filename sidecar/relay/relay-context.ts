import type { FinishedCall } from "../capture/finished-call.ts";
import type { TranslationSettings } from "../dialects/dialect.ts";
import type { JsonValue } from "../dialects/json-value.ts";
import type { Gate } from "../gate/gate.ts";
import type { RecentCalls } from "../retries/recent-calls.ts";
import type { EngineSet } from "../upstream/engine-set.ts";
import type { RetriableCall } from "./retriable-call.ts";

/** What the controller (or, without one, the configuration) says about captures. */
export interface CaptureSettings {
  readonly capturesText: boolean;
  readonly trainOverrides: Readonly<Record<string, JsonValue>>;
  readonly evalOverrides: Readonly<Record<string, JsonValue>>;
  readonly requiresCanary: boolean;
  readonly deduplicatesRetries: boolean;
}

export interface RelayLimits {
  readonly maxRequestBytes: number;
  readonly maxResponseBytes: number;
  /** Silence towards the harness after which its dialect's keep-alive is sent; 0 for none. */
  readonly keepAliveMs: number;
  /** Longest wait of a first call for the canary of its engine. */
  readonly canaryWaitMs: number;
  /** Longest answer that is kept for a retry to join or to be replayed to. */
  readonly maxReplayBytes: number;
}

/** What every call needs; one per process. */
export interface RelayContext {
  readonly gate: Gate;
  readonly engines: EngineSet;
  readonly recent: RecentCalls<RetriableCall>;
  readonly limits: RelayLimits;
  readonly translation: Partial<TranslationSettings>;
  readonly retriesAlwaysMarked: boolean;
  capture(): CaptureSettings;
  record(call: FinishedCall): void;
  /** Counts a call that no engine answered: it has no record. */
  noteRefusal(reason: string): void;
  readonly newId: (prefix: string) => string;
  readonly nowMs: () => number;
}
