import type { Dialect } from "../dialect.ts";
import { encodeMessagesError, translateMessagesError } from "./error-body.ts";
import { planMessagesRequest } from "./request.ts";
import { encodeMessagesResponse } from "./response.ts";
import { createMessagesStream, type MessagesStreamSettings } from "./stream.ts";

/** Anthropic's Messages API, translated to and from the engine's chat completions. */
export const messagesDialect: Dialect = {
  name: "messages",
  planCall(body, settings) {
    const plan = planMessagesRequest(body, settings);
    if ("status" in plan) return { kind: "refused", reply: plan };
    const { stopSequences, ...planned } = plan;
    const { newId, requestId } = settings;
    const stream: MessagesStreamSettings = { model: plan.model, stopSequences, newId, requestId };
    return {
      kind: "planned",
      dialect: "messages",
      upstreamPath: "/v1/chat/completions",
      ...planned,
      clientAsked: { logprobs: false, tokenIds: false, usage: true },
      openStream: () => createMessagesStream(stream),
      encodeResponse: (upstream) => encodeMessagesResponse(upstream, stream),
      encodeEngineError: translateMessagesError,
    };
  },
  encodeError: encodeMessagesError,
};
