import type { HarnessAdapter } from "../harness-adapter.ts";

/**
 * OpenHands: chat completions through litellm, native tool calls. Its condenser's summaries are
 * gone on from, so they are turns. Its requests name neither the program nor a session.
 */
export const openhandsAdapter: HarnessAdapter = {
  name: "openhands",
  recognizes: () => false,
  sessionId: () => undefined,
  sideCallClass: () => undefined,
  setUp: ({ baseUrl, apiKey, model }) => ({
    // `openai/` makes litellm speak chat completions to the base URL.
    env: {
      LLM_BASE_URL: `${baseUrl}/v1`,
      LLM_API_KEY: apiKey,
      LLM_MODEL: `openai/${model}`,
    },
    args: [],
    files: [],
  }),
};
