/** A run of sampled tokens `[start, end)` of one response that one policy version produced. */
export interface PolicyVersionSpan {
  readonly version: number;
  readonly start: number;
  readonly end: number;
}

/** Why a response ended, in the words of the chat completions API; others are kept as they came. */
export type FinishReason = "stop" | "length" | "tool_calls" | "content_filter" | (string & {});

/**
 * One choice of one model request through the sidecar. A request with n = 4 gives four calls with
 * the same `requestId` and `choiceIndex` 0 to 3.
 *
 * Example: `{ callId: "c7.0", requestId: "c7", choiceIndex: 0, promptIds: [1,2,3],
 * responseIds: [4,5], logprobs: [-0.1,-2.3], policyVersion: 3, delivered: true, complete: true, … }`.
 * The odd case: an engine that reported no ids gives `promptIds: null, responseIds: null,
 * logprobs: null, complete: false, incompleteReason: "ids-missing"`. Missing is never zero.
 */
export interface Call {
  readonly callId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly requestId: string;
  readonly choiceIndex: number;
  /** Exact ids that the engine saw; null where it did not say. */
  readonly promptIds: Int32Array | null;
  /** Exact ids that the engine sampled; null where it did not say. */
  readonly responseIds: Int32Array | null;
  /** Sampling logprobs, one per response id; null where the engine did not say. */
  readonly logprobs: Float32Array | null;
  /** Version at the start of the response; the spans, where present, say more. */
  readonly policyVersion: number;
  readonly policyVersions?: readonly PolicyVersionSpan[];
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly finishedAt: number;
  /** True only when the last byte of the response was flushed to the harness. */
  readonly delivered: boolean;
  /** True only when ids, logprobs and usage agree (see `incompleteReason`). */
  readonly complete: boolean;
  readonly incompleteReason?: string;
  readonly finishReason: FinishReason | null;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number } | null;
  /** Marked by an adapter: titles, background requests. Not trained unless asked. */
  readonly sideCall?: boolean;
  /** The `requestId` of the request that this one repeats (a marked retry or a replayed answer). */
  readonly retryOf?: string;
}
