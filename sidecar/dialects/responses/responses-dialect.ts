import type { Dialect, EncodedReply } from "../dialect.ts";
import { readContextOverflow, readErrorBody } from "../read-engine-error.ts";
import {
  describeEngineError,
  encodeResponsesError,
  translateResponsesError,
} from "./error-body.ts";
import { planResponsesRequest } from "./request.ts";
import { encodeResponsesResponse } from "./response.ts";
import {
  failResponse,
  newResponseBuilder,
  type ResponseBuilderSettings,
} from "./response-builder.ts";
import { createResponsesStream } from "./stream.ts";

/** OpenAI's Responses API, translated to and from the engine's chat completions. */
export const responsesDialect: Dialect = {
  name: "responses",
  planCall(body, settings) {
    const plan = planResponsesRequest(body, settings);
    if ("status" in plan) return { kind: "refused", reply: plan };
    const { targets, sealsReasoning, parallelToolCalls, ...planned } = plan;
    const { newId, nowMs } = settings;
    const builder = { model: plan.model, targets, sealsReasoning, parallelToolCalls, newId, nowMs };
    return {
      kind: "planned",
      dialect: "responses",
      upstreamPath: "/v1/chat/completions",
      ...planned,
      clientAsked: { logprobs: false, tokenIds: false, usage: true },
      openStream: () => createResponsesStream(builder),
      encodeResponse: (upstream) => encodeResponsesResponse(upstream, builder),
      encodeEngineError: (upstream) => encodeEngineError(upstream, plan.wantsStream, builder),
    };
  },
  encodeError: encodeResponsesError,
};

/**
 * Codex compacts its history when a stream ends with `context_length_exceeded`, and gives up on
 * the same error as a plain 400. So a streaming harness gets that one error as a stream.
 */
function encodeEngineError(
  upstream: EncodedReply,
  wantsStream: boolean,
  builder: ResponseBuilderSettings,
): EncodedReply {
  const error = readErrorBody(upstream.body);
  if (!wantsStream || readContextOverflow(error) === undefined) {
    return translateResponsesError(upstream);
  }
  const events: string[] = [];
  const response = newResponseBuilder(builder, (event) => events.push(event));
  failResponse(response, describeEngineError(error, upstream.status));
  return {
    status: 200,
    headers: { ...upstream.headers, "content-type": "text/event-stream" },
    body: Buffer.from(events.join("")),
  };
}
