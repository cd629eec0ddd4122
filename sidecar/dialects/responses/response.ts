import type { EncodedReply } from "../dialect.ts";
import { encodeReply } from "../encode-reply.ts";
import { encodeResponsesError } from "./error-body.ts";
import type { ResponseBuilderSettings } from "./response-builder.ts";
import { newResponsesState, pushWholeResponse } from "./stream.ts";

/** A chat completion as a response: what its own stream would have ended with. */
export function encodeResponsesResponse(
  upstream: EncodedReply,
  settings: ResponseBuilderSettings,
): EncodedReply {
  const state = newResponsesState(settings, () => {});
  pushWholeResponse(state, upstream.body);
  if (state.response === undefined) {
    const message = state.error?.message ?? "the engine's answer is no completion";
    const reason = state.error?.code ?? "server_error";
    return encodeResponsesError({ status: 502, reason, message });
  }
  const reply = encodeReply(upstream.status, state.response);
  return { ...reply, headers: { ...upstream.headers, ...reply.headers } };
}
