import type { Dialect } from "../dialect.ts";
import { encodeCompletionsError } from "./error-body.ts";
import { completionsPath, planCompletionsRequest } from "./request.ts";
import { encodeCompletionsResponse } from "./response.ts";
import { createCompletionsStream } from "./stream.ts";

/** OpenAI text completions (the older API; also the one that takes token ids as prompt). */
export const completionsDialect: Dialect = {
  name: "completions",
  planCall(body, settings) {
    const plan = planCompletionsRequest(body, settings);
    return {
      kind: "planned",
      dialect: "completions",
      upstreamPath: completionsPath,
      ...plan,
      dropped: [],
      openStream: () => createCompletionsStream(plan.clientAsked, plan.captured, settings),
      encodeResponse: (upstream) =>
        plan.captured
          ? { ...upstream, body: encodeCompletionsResponse(upstream.body, plan.clientAsked) }
          : upstream,
      encodeEngineError: (upstream) => upstream,
    };
  },
  encodeError: encodeCompletionsError,
};
