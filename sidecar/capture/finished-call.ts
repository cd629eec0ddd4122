import type { PolicyVersionSpan } from "../../core/call.ts";

export type DialectName = "chat" | "completions" | "responses" | "messages";
export type StreamMode = "none" | "relayed" | "synthesised";

/** One choice as captured, with everything in full (the uplink does the delta encoding). */
export interface FinishedChoice {
  readonly callId: string;
  readonly index: number;
  readonly responseIds: Int32Array | null;
  readonly logprobs: Float32Array | null;
  readonly finishReason: string | null;
  readonly stopReason: string | number | null;
  readonly policyVersions: readonly PolicyVersionSpan[];
  readonly complete: boolean;
  readonly incompleteReason?: string;
}

/** One request through the sidecar, ended in whatever way: what the capture hands to the uplink. */
export interface FinishedCall {
  readonly requestId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly dialect: DialectName;
  readonly streamMode: StreamMode;
  readonly model: string;
  readonly policyVersion: number;
  readonly promptIds: Int32Array | null;
  readonly choices: readonly FinishedChoice[];
  readonly usage: {
    readonly promptTokens: number;
    readonly completionTokens: number;
    readonly cachedTokens?: number;
  } | null;
  readonly delivered: boolean;
  readonly retryOf?: string;
  readonly replayOf?: string;
  readonly sideCallClass?: string;
  /** Stable reason when the engine gave no usable answer. */
  readonly errorReason?: string;
  readonly httpStatus: number;
  /** Milliseconds since the epoch; undefined where it never happened. */
  readonly timing: {
    readonly receivedAtMs: number;
    readonly sentAtMs?: number;
    readonly firstByteAtMs?: number;
    readonly finishedAtMs: number;
    readonly heldMs: number;
  };
  /** Bodies as received, before redaction; the uplink redacts at write time. */
  readonly requestText?: Uint8Array;
  readonly responseText?: Uint8Array;
  readonly droppedRequestParts: readonly string[];
  readonly sessionId?: string;
  readonly engine?: string;
  readonly samplingJson: string;
}
