import type { HarnessAdapter } from "../harness-adapter.ts";

/**
 * mini-SWE-agent: chat completions through litellm, not streaming, one `bash` tool, every call a
 * turn. Its requests name neither the program nor a session: it is told apart by its token.
 */
export const miniSweAgentAdapter: HarnessAdapter = {
  name: "mini-swe-agent",
  recognizes: () => false,
  sessionId: () => undefined,
  sideCallClass: () => undefined,
  setUp: ({ baseUrl, apiKey, model }) => {
    // JSON is YAML.
    const config = {
      model: {
        model_name: model,
        model_kwargs: { custom_llm_provider: "openai", api_base: `${baseUrl}/v1`, api_key: apiKey },
      },
    };
    return {
      // It raises on a model whose price it does not know.
      env: { OPENAI_API_KEY: apiKey, MSWEA_COST_TRACKING: "ignore_errors" },
      args: ["-c", "outrigger-model.yaml"],
      files: [{ path: "outrigger-model.yaml", content: `${JSON.stringify(config, null, 2)}\n` }],
    };
  },
};
