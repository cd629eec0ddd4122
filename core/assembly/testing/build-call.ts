import type { CapturedCall } from "../captured-call.ts";

export type CallFields = Partial<Omit<CapturedCall, "promptIds" | "responseIds" | "logprobs">> & {
  readonly logprobs?: readonly number[] | null;
};

/**
 * A whole, delivered call of attempt r/a. Unless given, the id is also the request's id, its
 * number is the start time, and token t has logprob -t / 8.
 */
export function buildCall(
  callId: string,
  prompt: readonly number[] | null,
  response: readonly number[] | null,
  fields: CallFields = {},
): CapturedCall {
  const startedAt = Number(callId.replace(/\D/g, "")) * 10;
  const { logprobs = response?.map((id) => -id / 8) ?? null, ...rest } = fields;
  return {
    callId,
    rolloutId: "r",
    attemptId: "a",
    requestId: callId,
    choiceIndex: 0,
    promptIds: prompt === null ? null : Int32Array.from(prompt),
    responseIds: response === null ? null : Int32Array.from(response),
    policyVersion: 1,
    startedAt,
    finishedAt: startedAt + 5,
    delivered: true,
    complete: true,
    finishReason: "stop",
    usage: { promptTokens: prompt?.length ?? 0, completionTokens: response?.length ?? 0 },
    ...rest,
    logprobs: logprobs === null ? null : Float32Array.from(logprobs),
  };
}
