import type { Dialect } from "../dialect.ts";
import { encodeChatError } from "./error-body.ts";
import { chatPath, planChatRequest } from "./request.ts";
import { encodeChatResponse } from "./response.ts";
import { createChatStream } from "./stream.ts";

/** OpenAI chat completions. */
export const chatDialect: Dialect = {
  name: "chat",
  planCall(body, settings) {
    const plan = planChatRequest(body, settings);
    return {
      kind: "planned",
      dialect: "chat",
      upstreamPath: chatPath,
      ...plan,
      dropped: [],
      openStream: () => createChatStream(plan.clientAsked, plan.captured, settings),
      encodeResponse: (upstream, onScan) =>
        plan.captured
          ? { ...upstream, body: encodeChatResponse(upstream.body, plan.clientAsked, onScan) }
          : upstream,
      encodeEngineError: (upstream) => upstream,
    };
  },
  encodeError: encodeChatError,
};
