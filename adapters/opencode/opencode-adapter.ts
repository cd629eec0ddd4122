import { type HarnessAdapter, headerValue } from "../harness-adapter.ts";
import { readConversation } from "../read-conversation.ts";

/** OpenCode: chat completions, streaming with usage. Asks for a title beside the first turn. */
export const opencodeAdapter: HarnessAdapter = {
  name: "opencode",
  recognizes: (headers) => (headerValue(headers, "user-agent") ?? "").startsWith("opencode/"),
  sessionId: (headers) =>
    headerValue(headers, "x-session-id") ?? headerValue(headers, "x-session-affinity"),
  sideCallClass({ body }) {
    const view = readConversation(body);
    const isTitle = view.firstUserText.startsWith("Generate a title for this conversation");
    return view.toolCount === 0 && isTitle ? "title" : undefined;
  },
  setUp: ({ baseUrl, apiKey, model }) => {
    const provider = {
      npm: "@ai-sdk/openai-compatible",
      name: "Outrigger",
      options: { baseURL: `${baseUrl}/v1`, apiKey },
      models: { [model]: {} },
    };
    const config = { provider: { outrigger: provider }, model: `outrigger/${model}` };
    return {
      env: {
        OPENCODE_CONFIG_CONTENT: JSON.stringify(config),
        OPENCODE_DISABLE_AUTOUPDATE: "1",
        OPENCODE_DISABLE_MODELS_FETCH: "1",
      },
      args: [],
      files: [],
    };
  },
};
