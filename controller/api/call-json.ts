import type { Call } from "../../core/call.ts";

/** A call as JSON; what `outrigger assemble` reads. A logprob that is no number becomes null. */
export function toCallJson(call: Call): Record<string, unknown> {
  return {
    ...call,
    promptIds: call.promptIds && Array.from(call.promptIds),
    responseIds: call.responseIds && Array.from(call.responseIds),
    logprobs: call.logprobs && Array.from(call.logprobs),
  };
}
