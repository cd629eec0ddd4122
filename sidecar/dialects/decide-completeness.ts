import type { PolicyVersionSpan } from "../../core/call.ts";

/** Why a choice is never trained on. The first that applies, in this order, is the reason. */
export type IncompleteReason =
  /** The engine reported an error inside its answer. */
  | "engine-error"
  /** No finish reason: aborted, reset, or cut off. */
  | "finish-missing"
  /** An event of the engine was no JSON, so something may be lost. */
  | "event-unreadable"
  | "prompt-ids-missing"
  | "ids-missing"
  /** Something that is no token id stands among the ids. */
  | "ids-invalid"
  | "logprobs-missing"
  /** As many logprobs as ids are needed. */
  | "logprobs-count"
  /** NaN, an infinity, or null in place of a number. */
  | "logprob-not-finite"
  /** vLLM's -9999 stands for minus infinity. */
  | "logprob-clamped"
  | "usage-missing"
  /** Σ ids of all choices ≠ completion tokens. */
  | "usage-mismatch"
  /** Version spans that are out of order, overlap or do not cover every id. */
  | "policy-versions-invalid";

export interface CompletenessFacts {
  readonly promptIds: readonly unknown[] | null;
  readonly responseIds: readonly unknown[] | null;
  /** NaN where the engine gave no number. */
  readonly logprobs: readonly number[] | null;
  readonly finishReason: string | null;
  readonly policyVersions: readonly PolicyVersionSpan[] | undefined;
  /** Response ids of all choices of the request together. */
  readonly allResponseIds: number;
  readonly completionTokens: number | undefined;
  readonly hasEngineError: boolean;
  readonly hasUnreadable: boolean;
}

const MAX_ID = 2 ** 31 - 1;
/** vLLM writes -9999.0 for minus infinity; no real logprob of a float32 softmax is that low. */
const CLAMPED_LOGPROB = -9999;

/** Undefined for a choice that is complete: ids, logprobs and usage all agree. */
export function decideCompleteness(facts: CompletenessFacts): IncompleteReason | undefined {
  const { promptIds, responseIds, logprobs, completionTokens } = facts;
  if (facts.hasEngineError) return "engine-error";
  if (facts.finishReason === null) return "finish-missing";
  if (facts.hasUnreadable) return "event-unreadable";
  if (promptIds === null || promptIds.length === 0) return "prompt-ids-missing";
  if (responseIds === null || responseIds.length === 0) return "ids-missing";
  if (!promptIds.every(isTokenId) || !responseIds.every(isTokenId)) return "ids-invalid";
  if (logprobs === null || logprobs.length === 0) return "logprobs-missing";
  if (logprobs.length !== responseIds.length) return "logprobs-count";
  if (!logprobs.every(Number.isFinite)) return "logprob-not-finite";
  if (logprobs.some((logprob) => logprob <= CLAMPED_LOGPROB)) return "logprob-clamped";
  if (completionTokens === undefined) return "usage-missing";
  if (facts.allResponseIds !== completionTokens) return "usage-mismatch";
  const spans = facts.policyVersions;
  if (spans !== undefined && !coversAll(spans, responseIds.length)) {
    return "policy-versions-invalid";
  }
  return undefined;
}

function isTokenId(id: unknown): boolean {
  return Number.isInteger(id) && (id as number) >= 0 && (id as number) <= MAX_ID;
}

function coversAll(spans: readonly PolicyVersionSpan[], length: number): boolean {
  let position = 0;
  for (const span of spans) {
    const isWhole = Number.isInteger(span.version) && Number.isInteger(span.end);
    if (!isWhole || span.start !== position || span.end < position) return false;
    position = span.end;
  }
  return position === length;
}
