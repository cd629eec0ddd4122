import { type HarnessAdapter, headerValue } from "../harness-adapter.ts";
import { readConversation } from "../read-conversation.ts";

/**
 * Anthropic's Claude Code: the Messages API, streaming, whole answers after a broken stream. Its
 * billing block in the system prompt and its `cache_control` marks differ from call to call; the
 * dialect leaves both out.
 */
export const claudeCodeAdapter: HarnessAdapter = {
  name: "claude-code",
  recognizes: (headers) =>
    headerValue(headers, "x-claude-code-session-id") !== undefined ||
    (headerValue(headers, "user-agent") ?? "").startsWith("claude-cli/"),
  sessionId: (headers) => headerValue(headers, "x-claude-code-session-id"),
  sideCallClass({ body }) {
    const view = readConversation(body);
    if (view.maxTokens === 1) return "probe";
    // Titles and topics are asked for in one message and without tools. A summary for compaction
    // carries the conversation, so it is a turn.
    const userCount = view.roles.filter((role) => role === "user").length;
    const isLone = userCount <= 1 && !view.roles.includes("assistant");
    return view.toolCount === 0 && isLone ? "background" : undefined;
  },
  setUp: ({ baseUrl, apiKey, model }) => ({
    env: {
      ANTHROPIC_BASE_URL: baseUrl,
      ANTHROPIC_API_KEY: apiKey,
      ANTHROPIC_MODEL: model,
      ANTHROPIC_SMALL_FAST_MODEL: model,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      CLAUDE_CODE_ATTRIBUTION_HEADER: "0",
    },
    args: [],
    files: [],
  }),
};
