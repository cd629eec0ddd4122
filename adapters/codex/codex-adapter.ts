import { type HarnessAdapter, headerValue } from "../harness-adapter.ts";
import { fields } from "../read-conversation.ts";

/**
 * OpenAI's Codex CLI: the Responses API only, always streaming. A session with its subagents has
 * one `session-id`; each of its threads has its own `thread-id`.
 */
export const codexAdapter: HarnessAdapter = {
  name: "codex",
  recognizes: (headers) =>
    (headerValue(headers, "originator") ?? headerValue(headers, "user-agent") ?? "").startsWith(
      "codex",
    ),
  sessionId: (headers) => headerValue(headers, "session-id"),
  sideCallClass({ headers }) {
    // A warm-up before the first turn; everything else is a turn or a compaction.
    return requestKind(headerValue(headers, "x-codex-turn-metadata")) === "prewarm"
      ? "prewarm"
      : undefined;
  },
  setUp: ({ baseUrl, apiKey, model }) => {
    const provider = `{name="outrigger",base_url=${JSON.stringify(`${baseUrl}/v1`)},wire_api="responses",env_key="OUTRIGGER_KEY"}`;
    return {
      env: { OUTRIGGER_KEY: apiKey },
      args: [
        "-m",
        model,
        "-c",
        "model_provider=outrigger",
        "-c",
        `model_providers.outrigger=${provider}`,
        // Without these it connects to servers of its maker's.
        "-c",
        "features.plugins=false",
        "-c",
        "analytics.enabled=false",
      ],
      files: [],
    };
  },
};

function requestKind(metadata: string | undefined): unknown {
  if (metadata === undefined) return undefined;
  try {
    return fields(JSON.parse(metadata))["request_kind"];
  } catch {
    return undefined;
  }
}
