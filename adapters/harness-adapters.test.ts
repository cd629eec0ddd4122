import { describe, expect, it } from "vitest";
import { loadHarnessRequest } from "../test/golden/harnesses/load-harness-request.ts";
import { classifySideCall } from "./classify-side-call.ts";
import { harnessAdapters } from "./harness-adapters.ts";
import { normalizeHistory, sharedTurnCount } from "./normalize-history.ts";
import { readHarnessSession } from "./read-harness-session.ts";
import { recognizeHarness } from "./recognize-harness.ts";

/** Header names as Node gives them. */
function load(name: string) {
  const { headers, ...rest } = loadHarnessRequest(name);
  const lower = Object.entries(headers).map(([key, value]) => [key.toLowerCase(), value]);
  return { ...rest, headers: Object.fromEntries(lower) as Record<string, string> };
}

describe("requests of real harnesses", () => {
  it.each([
    ["codex-tool-1", "codex", "codex:<uuid>"],
    ["codex-openaibase2-1", "codex", "codex:<uuid>"],
    ["claude-tool-1", "claude-code", "claude-code:<uuid>"],
    ["claude-latest-prefix-1", "claude-code", "claude-code:<uuid>"],
    ["opencode-tool-2", "opencode", "opencode:ses_dd4b0eca2ffe36R2HSK7IiHoxL"],
    ["qwen-latest-tool-1", "qwen-code", undefined],
    ["qwen-tool-1", "qwen-code", undefined],
    ["sdk-anthropic-1", undefined, undefined],
    ["sdk-agents-1", undefined, undefined],
    ["sdk-ai-1", undefined, undefined],
    ["sdk-langchain-1", undefined, undefined],
  ])("%s is %s's, session %s", (name, harness, sessionId) => {
    const { headers } = load(name);
    expect(recognizeHarness(headers)?.name).toBe(harness);
    expect(readHarnessSession(headers)?.sessionId).toBe(sessionId);
  });

  it.each([
    ["codex-tool-1", undefined],
    ["codex-tool-2", undefined],
    ["codex-openaibase2-1", "prewarm"],
    ["claude-tool-1", undefined],
    ["claude-latest-tool-2", undefined],
    ["opencode-tool-2", undefined],
    ["opencode-tool-3", undefined],
    ["qwen-latest-tool-1", undefined],
    ["qwen-tool-2", undefined],
  ])("%s is a side call of class %s", (name, expected) => {
    const { headers, body } = load(name);
    // The recording cuts the header off after its first 250 characters.
    const metadata = headers["x-codex-turn-metadata"];
    const whole =
      metadata === undefined
        ? {}
        : { "x-codex-turn-metadata": `${metadata.replace(/,"[^,]*$/, "")}}` };
    expect(classifySideCall({ headers: { ...headers, ...whole }, body })).toBe(expected);
  });

  it("OpenCode's title request is told apart on the same session", () => {
    const { headers, body } = load("opencode-tool-1");
    const [system, , task] = body["messages"] as object[];
    const messages = [
      system,
      { role: "user", content: "Generate a title for this conversation:\n" },
      task,
    ];
    expect(readHarnessSession(headers)?.sessionId).toBe(
      readHarnessSession(load("opencode-tool-2").headers)?.sessionId,
    );
    expect(classifySideCall({ headers, body: { ...body, messages } })).toBe("title");
  });

  it.each([
    ["codex-tool-1", "codex-tool-2"],
    ["opencode-tool-2", "opencode-tool-3"],
    ["qwen-tool-1", "qwen-tool-2"],
    ["qwen-latest-tool-1", "qwen-latest-tool-2"],
    ["claude-tool-1", "claude-tool-2"],
    ["claude-latest-tool-1", "claude-latest-tool-2"],
  ])("the history of %s is a prefix of that of %s", (first, second) => {
    const [earlier, later] = [first, second].map((name) => normalizeHistory(load(name).body));
    expect(earlier?.length).toBeGreaterThan(1);
    expect(sharedTurnCount(earlier ?? [], later ?? [])).toBe(earlier?.length);
    expect(later?.length).toBe((earlier?.length ?? 0) + 2);
  });
});

describe("side calls", () => {
  const claude = { "user-agent": "claude-cli/2.1.332 (external, cli)" };
  const qwen = { "user-agent": "QwenCode/0.24.4 (linux; x64)" };
  const user = { role: "user", content: "hi" };
  it.each([
    ["a probe", claude, { max_tokens: 1, messages: [user] }, "probe"],
    ["a title or topic", claude, { system: "Name it", messages: [user] }, "background"],
    [
      "a compaction",
      claude,
      { messages: [user, { role: "assistant", content: "a" }, user] },
      undefined,
    ],
    ["a subagent's first turn", claude, { tools: [{}], messages: [user] }, undefined],
    [
      "a memory extraction",
      qwen,
      {
        tools: [{}],
        messages: [
          {
            role: "system",
            content:
              "You are now acting as the managed memory extraction subagent for an AI coding assistant.",
          },
          user,
        ],
      },
      "memory",
    ],
    [
      "a title",
      qwen,
      {
        messages: [
          { role: "system", content: "Generate a concise, sentence-case title (3-7 words)" },
        ],
      },
      "title",
    ],
    ["an unknown harness's call", {}, { messages: [user] }, undefined],
  ])("%s", (_name, headers, body, expected) => {
    expect(classifySideCall({ headers, body })).toBe(expected);
  });

  it.each([
    undefined,
    null,
    3,
    "x",
    [],
    { messages: 3 },
    { messages: [null, 3], tools: {}, system: [null] },
  ])("is total over %j", (body) => {
    for (const adapter of Object.values(harnessAdapters)) {
      adapter.sideCallClass({ headers: { "x-codex-turn-metadata": "{oops" }, body });
    }
    expect(normalizeHistory(body).every((turn) => typeof turn.text === "string")).toBe(true);
  });
});

describe("histories that differ only in how they are written are the same", () => {
  const same = (a: unknown, b: unknown) => expect(normalizeHistory(a)).toEqual(normalizeHistory(b));
  it("string and one part, null and empty, cache marks, billing block", () => {
    same(
      { messages: [{ role: "user", content: "a" }] },
      { messages: [{ role: "user", content: [{ type: "text", text: "a", cache_control: {} }] }] },
    );
    same(
      { messages: [{ role: "assistant", content: null }] },
      { messages: [{ role: "assistant", content: "" }] },
    );
    const billing = (version: string) => ({
      type: "text",
      text: `x-anthropic-billing-header: cc_version=${version}`,
    });
    same(
      { system: [billing("1"), { type: "text", text: "s" }] },
      { system: [billing("2"), { type: "text", text: "s" }] },
    );
  });

  it("counts what two histories share", () => {
    const turns = (...texts: string[]) =>
      normalizeHistory({ messages: texts.map((content) => ({ role: "user", content })) });
    expect(sharedTurnCount(turns("a", "b"), turns("a", "b", "c"))).toBe(2);
    expect(sharedTurnCount(turns("a", "b"), turns("a", "x", "c"))).toBe(1);
    expect(sharedTurnCount(turns("a", "b"), turns("a"))).toBe(1);
  });
});

describe("setting a harness up", () => {
  it.each(Object.values(harnessAdapters).map((adapter) => [adapter.name, adapter] as const))(
    "%s is pointed at the target and at nothing else",
    (_name, adapter) => {
      const setup = adapter.setUp({
        baseUrl: "http://127.0.0.1:9/r/tok",
        apiKey: "key-1",
        model: "m",
      });
      const text = JSON.stringify(setup);
      expect(text).toContain("http://127.0.0.1:9/r/tok");
      expect(text).toContain("key-1");
      expect(
        text
          .match(/https?:\/\/[^"\\]+/g)
          ?.every((url) => url.startsWith("http://127.0.0.1:9/r/tok")),
      ).toBe(true);
    },
  );
});
