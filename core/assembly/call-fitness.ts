import type { CapturedCall } from "./captured-call.ts";

/** What the records of a call are good for. */
export type CallFitness =
  | { readonly kind: "trainable" }
  /** Complete, but nothing was sampled. */
  | { readonly kind: "empty" }
  /** Whole ids, no usable logprobs: may be context, is never trained. */
  | { readonly kind: "masked"; readonly reason: string }
  /** Ids missing or cut: neither trained nor context. */
  | { readonly kind: "partial"; readonly reason: string };

/** vLLM reports this instead of -Infinity, which JSON cannot hold. */
const CLAMPED_LOGPROB = -9999;
/** A probability is at most 1; rounding may put its logarithm a little above 0. */
const MAX_LOGPROB = 1e-4;

/**
 * Judges a call as a whole: one bad logprob makes all of it unfit to train. The record's own
 * `complete` flag can only make the verdict worse.
 *
 * `choiceTokens` is the number of response ids of all choices of the call's request: with n > 1
 * engines report one usage for the request, so either sum may be the one that agrees.
 */
export function judgeCall(call: CapturedCall, choiceTokens: number): CallFitness {
  const idsProblem = findIdsProblem(call, choiceTokens);
  if (idsProblem !== null) {
    return { kind: "partial", reason: call.incompleteReason ?? idsProblem };
  }
  const logprobsProblem = findLogprobsProblem(call) ?? findVersionsProblem(call);
  if (call.complete && logprobsProblem === null) {
    return { kind: call.responseIds?.length === 0 ? "empty" : "trainable" };
  }
  const reason = call.incompleteReason ?? logprobsProblem ?? "marked-incomplete";
  // Without usage nothing says that the ids of an incomplete call are all there.
  const idsAreWhole = call.usage !== null || call.complete;
  return { kind: idsAreWhole ? "masked" : "partial", reason };
}

function findIdsProblem(call: CapturedCall, choiceTokens: number): string | null {
  const { promptIds, responseIds, usage } = call;
  if (promptIds === null || promptIds.length === 0) return "prompt-ids-missing";
  if (responseIds === null) return "response-ids-missing";
  if (usage === null) return null;
  if (usage.promptTokens !== promptIds.length) return "prompt-usage-mismatch";
  const { completionTokens } = usage;
  const agrees = completionTokens === responseIds.length || completionTokens === choiceTokens;
  return agrees ? null : "usage-mismatch";
}

function findLogprobsProblem(call: CapturedCall): string | null {
  const { responseIds, logprobs } = call;
  if (responseIds === null || responseIds.length === 0) return null;
  if (logprobs === null) return "logprobs-missing";
  if (logprobs.length !== responseIds.length) return "logprobs-length-mismatch";
  for (let i = 0; i < logprobs.length; i++) {
    const logprob = logprobs[i] as number;
    if (!(logprob > CLAMPED_LOGPROB && logprob < Infinity)) {
      return logprob <= CLAMPED_LOGPROB && logprob > -Infinity
        ? "logprob-clamped"
        : "logprob-not-finite";
    }
    if (logprob > MAX_LOGPROB) return "logprob-invalid";
  }
  return null;
}

/** Spans, where there are any, leave no token without a version. */
function findVersionsProblem({ policyVersions, responseIds }: CapturedCall): string | null {
  if (policyVersions === undefined || policyVersions.length === 0) return null;
  let position = 0;
  for (const { start, end } of policyVersions) {
    if (start !== position || end < start) return "policy-versions-invalid";
    position = end;
  }
  return position === (responseIds?.length ?? 0) ? null : "policy-versions-invalid";
}
