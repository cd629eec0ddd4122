import { type HarnessAdapter, headerValue } from "../harness-adapter.ts";
import { readConversation } from "../read-conversation.ts";

const memoryPrompt = "You are now acting as the managed memory extraction subagent";
const titlePrompt = "Generate a concise, sentence-case title";

/**
 * Qwen Code: chat completions, streaming with usage, user content as a list of parts. Sends no
 * session id: a deployed one needs a token or a base URL of its own per session. With managed
 * memory on, a memory request follows the answer; `setUp` turns it off.
 */
export const qwenCodeAdapter: HarnessAdapter = {
  name: "qwen-code",
  recognizes: (headers) => (headerValue(headers, "user-agent") ?? "").startsWith("QwenCode/"),
  sessionId: () => undefined,
  sideCallClass({ body }) {
    const { systemText } = readConversation(body);
    if (systemText.startsWith(memoryPrompt)) return "memory";
    return systemText.startsWith(titlePrompt) ? "title" : undefined;
  },
  setUp: ({ baseUrl, apiKey, model }) => {
    const settings = {
      privacy: { usageStatisticsEnabled: false },
      memory: { enableManagedAutoMemory: false },
    };
    return {
      env: { OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: `${baseUrl}/v1`, OPENAI_MODEL: model },
      args: ["--auth-type", "openai"],
      files: [{ path: "~/.qwen/settings.json", content: JSON.stringify(settings) }],
    };
  },
};
