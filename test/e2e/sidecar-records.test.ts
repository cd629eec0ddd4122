import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { FinishedCall } from "../../sidecar/capture/finished-call.ts";
import type { DialectName } from "../../sidecar/dialects/dialect.ts";
import { playScript } from "../conformance/play-script.ts";
import {
  type EngineScript,
  jsonSteps,
  type ScriptedEngine,
  startScriptedEngine,
  streamSteps,
} from "../conformance/scripted-engine.ts";
import { type VllmOptions, vllmScript } from "../conformance/vllm-script.ts";
import { post } from "./post.ts";
import { askIn, dialectNames } from "./sidecar-dialect-requests.ts";
import { startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
});
beforeEach(() => {
  engine.setScript(vllmScript());
  proxied.calls.length = 0;
});
afterAll(async () => {
  await proxied.close();
  await engine.close();
});

const ways = dialectNames.flatMap((dialect) =>
  [true, false].map((stream) => [dialect, stream] as const),
);

const ids = (call: FinishedCall | undefined): number[][] =>
  call?.choices.map(({ responseIds }) => [...(responseIds ?? [])]) ?? [];

async function only(): Promise<FinishedCall> {
  const [call] = await proxied.recorded(1);
  if (call === undefined) throw new Error("no record");
  return call;
}

/** The pretended vLLM's answer with some of its text exchanged. */
function edited(options: VllmOptions, edit: (text: string) => string): EngineScript {
  return async (request) => {
    const text = (await playScript(vllmScript(options), request.body, request.url)).toString();
    return request.json["stream"] === true ? streamSteps(edit(text)) : jsonSteps(200, edit(text));
  };
}

describe("several choices", () => {
  it.each([
    ["chat", true],
    ["chat", false],
    ["completions", true],
    ["completions", false],
  ] as const)("%s, stream %s: n = 3, each with its own ids", async (dialect, stream) => {
    engine.setScript(
      vllmScript({ answer: (_request, index) => ({ content: "word ".repeat(index + 1).trim() }) }),
    );
    const answer = await askIn(dialect, proxied.url, { n: 3, stream });
    expect(answer.body).not.toContain("token_ids");
    const call = await only();
    expect(call).toMatchObject({ dialect, delivered: true });
    expect(call.choices.map(({ index, complete }) => [index, complete])).toEqual([
      [0, true],
      [1, true],
      [2, true],
    ]);
    expect(ids(call).map((each) => each.length)).toEqual([2, 3, 4]);
    expect(call.choices.map(({ logprobs }) => logprobs?.length)).toEqual([2, 3, 4]);
    expect(new Set(call.choices.map(({ callId }) => callId)).size).toBe(3);
    expect(call.usage?.completionTokens).toBe(9);
  });

  it.each([true, false])("a prompt of ids arrives as such, stream %s", async (stream) => {
    await askIn("completions", proxied.url, { prompt: [5, 6, 70_000], stream });
    expect(engine.requests.at(-1)?.json["prompt"]).toEqual([5, 6, 70_000]);
    const call = await only();
    expect([...(call.promptIds ?? [])]).toEqual([5, 6, 70_000]);
    expect(call.choices[0]?.complete).toBe(true);
  });
});

describe("text completions of several prompts", () => {
  const prompts = [
    [5, 6, 7],
    [8, 9],
  ];
  const choice = (index: number) => ({
    index,
    text: `t${index}`,
    prompt_token_ids: prompts[index],
    token_ids: [20 + index],
    logprobs: { token_logprobs: [-1], tokens: ["t"], text_offset: [0], top_logprobs: [] },
    finish_reason: "length",
  });
  const usage = { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 };

  it.each([true, false])("no choice is trained in another's context, stream %s", async (stream) => {
    engine.setScript(() =>
      stream
        ? streamSteps(
            [{ choices: [choice(0)] }, { choices: [choice(1)] }, { choices: [], usage }]
              .map((event) => `data: ${JSON.stringify(event)}\n\n`)
              .join("") + "data: [DONE]\n\n",
          )
        : jsonSteps(200, { choices: [choice(0), choice(1)], usage }),
    );
    await askIn("completions", proxied.url, { prompt: prompts, stream });
    const call = await only();
    expect([...(call.promptIds ?? [])]).toEqual([5, 6, 7]);
    expect(
      call.choices.map(({ complete, incompleteReason }) => [complete, incompleteReason]),
    ).toEqual([
      [true, undefined],
      [false, "prompt-of-another-choice"],
    ]);
    expect(ids(call)).toEqual([[20], [21]]);
  });
});

describe("logprobs that are none: the harness gets its answer, the call is incomplete", () => {
  const values: [string, string, string][] = [
    ["NaN", "NaN", "logprob-not-finite"],
    ["minus infinity", "-Infinity", "logprob-not-finite"],
    ["infinity", "Infinity", "logprob-not-finite"],
    ["a number beyond all doubles", "-1e999", "logprob-not-finite"],
    ["null", "null", "logprob-not-finite"],
    ["a word", '"low"', "logprob-not-finite"],
    ["vLLM's clamped minus infinity", "-9999.0", "logprob-clamped"],
  ];
  const cases = ways.flatMap(([dialect, stream]) =>
    values.map(([name, value, reason]) => [dialect, stream, name, value, reason] as const),
  );

  it.each(cases)("%s, stream %s: %s", async (dialect, stream, _name, value, reason) => {
    engine.setScript(vllmScript());
    const good = await askIn(dialect, proxied.url, { stream });
    engine.setScript(edited({ logprobs: "nan" }, (text) => text.replaceAll("NaN", value)));
    const answer = await askIn(dialect, proxied.url, { stream });
    expect(answer).toMatchObject({ status: 200, end: "clean" });
    expect(withoutIds(answer.body)).toBe(withoutIds(good.body));
    const call = (await proxied.recorded(2)).at(-1);
    expect(call).toMatchObject({ delivered: true });
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: reason });
    // Nothing of what was sampled is lost, and nothing is made up.
    expect(ids(call)).toEqual(ids(proxied.calls[0]));
    expect(call?.choices[0]?.logprobs?.length).toBe(call?.choices[0]?.responseIds?.length);
  });

  function withoutIds(body: string): string {
    return body
      .replaceAll(/(resp|msg|rs|chatcmpl|cmpl)[-_][0-9A-Za-z]+/g, "$1")
      .replaceAll(/"(created_at|completed_at)":\d+/g, '"$1":0');
  }
});

describe("the policy version changes within a call", () => {
  const spans = [
    { version: 3, start: 0, end: 2 },
    { version: 4, start: 2, end: 4 },
  ];
  const answer = () => ({ content: "one two three" });

  it.each(ways)("%s, stream %s: spans per token, not shown", async (dialect, stream) => {
    engine.setScript(vllmScript({ answer, policyVersions: spans }));
    const { body } = await askIn(dialect, proxied.url, { stream });
    expect(body).not.toContain("policy_versions");
    const { choices } = await only();
    expect(choices[0]).toMatchObject({ complete: true, policyVersions: spans });
  });

  it.each([true, false])("weight_versions with names of versions, stream %s", async (stream) => {
    engine.setScript(
      edited({ answer, policyVersions: spans }, (text) =>
        text
          .replaceAll("policy_versions", "weight_versions")
          .replaceAll('"version":3', '"version":"3"')
          .replaceAll('"version":4', '"version":"4"'),
      ),
    );
    await askIn("chat", proxied.url, { stream });
    const { choices } = await only();
    expect(choices[0]).toMatchObject({ complete: true, policyVersions: spans });
  });

  it.each([
    ["a gap", [spans[0], { version: 4, start: 3, end: 4 }]],
    ["an overlap", [spans[0], { version: 4, start: 1, end: 4 }]],
    ["too few", [spans[0]]],
  ])("spans with %s train nothing", async (_name, wrong) => {
    engine.setScript(vllmScript({ answer, policyVersions: wrong as typeof spans }));
    await askIn("chat", proxied.url, { stream: true });
    const { choices } = await only();
    expect(choices[0]).toMatchObject({
      complete: false,
      incompleteReason: "policy-versions-invalid",
    });
  });
});

describe("whose call it is", () => {
  it.each([
    ["chat/completions", "train"],
    ["chat/completions", "val"],
    ["completions", "train"],
  ])("Agent Lightning's proxy path streams: %s, mode %s", async (route, mode) => {
    let release = (): void => undefined;
    const arrived = new Promise<void>((resolve) => {
      release = resolve;
    });
    engine.setScript(vllmScript({ betweenEvents: (index) => (index === 2 ? arrived : undefined) }));
    const path = `/proxy/rollout/r-1/attempt/a-2/mode/${mode}/openai/v1/${route}`;
    const request = { model: "toy", stream: true, prompt: "hi", messages: [{ role: "user" }] };
    // The first chunk must reach the harness while the engine still holds the third back.
    const answer = await post(proxied.url, JSON.stringify(request), { path, onFirstByte: release });
    expect(answer.headers["content-type"]).toContain("text/event-stream");
    expect(answer.body.endsWith("data: [DONE]\n\n")).toBe(true);
    expect(answer.body).not.toContain("token_ids");
    expect(engine.requests.at(-1)?.url).toBe(`/v1/${route}`);
    const call = await only();
    expect(call).toMatchObject({
      rolloutId: "r-1",
      attemptId: "a-2",
      streamMode: "relayed",
      delivered: true,
    });
    expect(call.choices[0]?.complete).toBe(true);
  });

  describe("a session of a deployed agent is a rollout", () => {
    let deployed: TestSidecar;
    beforeAll(async () => {
      deployed = await startTestSidecar([engine.url], { identity: { bindSessions: true } });
    });
    afterAll(() => deployed.close());

    const codex = { "user-agent": "codex_exec/0.171.0", "session-id": "s1" };
    const claude = {
      "user-agent": "claude-cli/2.1.332 (external, cli)",
      "x-claude-code-session-id": "s2",
    };
    const opencode = { "user-agent": "opencode/1.18.33", "x-session-id": "s3" };

    it.each<[DialectName, Record<string, string>, string]>([
      ["responses", codex, "codex:s1"],
      ["messages", claude, "claude-code:s2"],
      ["chat", opencode, "opencode:s3"],
    ])("%s %j", async (dialect, headers, sessionId) => {
      deployed.calls.length = 0;
      await askIn(dialect, deployed.url, { stream: true }, { headers });
      const [call] = await deployed.recorded(1);
      expect(call).toMatchObject({ rolloutId: `session:${sessionId}`, sessionId });
    });

    it("a call without one belongs to nobody: never to a shared default", async () => {
      const before = engine.requests.length;
      const answer = await askIn("chat", deployed.url);
      expect(answer.status).toBe(401);
      expect(JSON.parse(answer.body)).toMatchObject({ error: { code: "unknown-identity" } });
      expect(engine.requests.length).toBe(before);
    });

    it("but beside a rollout's name in the path it only says which session", async () => {
      deployed.calls.length = 0;
      const request = JSON.stringify({ model: "toy", messages: [{ role: "user", content: "hi" }] });
      await post(deployed.url, request, { path: "/r/mine/v1/chat/completions", headers: opencode });
      const [call] = await deployed.recorded(1);
      expect(call).toMatchObject({ rolloutId: "mine", sessionId: "opencode:s3" });
    });
  });

  it("no harness's credential reaches the engine, in whatever header", async () => {
    const headers = {
      authorization: "Bearer sk-harness-1",
      "x-api-key": "sk-harness-2",
      "api-key": "sk-harness-3",
      "proxy-authorization": "Basic sk-harness-4",
    };
    for (const dialect of dialectNames) {
      await askIn(dialect, proxied.url, {}, { headers });
      expect(engine.requests.at(-1)?.rawHeaders.join("\n")).not.toContain("sk-harness");
    }
    const before = engine.requests.length;
    await fetch(`${proxied.url}/v1/models`, { headers });
    const count = { method: "POST", body: '{"messages":[]}', headers };
    await fetch(`${proxied.url}/v1/messages/count_tokens`, count);
    const others = engine.requests.slice(before);
    expect(others.length).toBeGreaterThan(1);
    expect(JSON.stringify(others.map(({ rawHeaders }) => rawHeaders))).not.toContain("sk-harness");
  });
});

describe("what the engine cannot be told", () => {
  it.each([true, false])("messages, stream %s: dropped, recorded, no 400", async (stream) => {
    const answer = await askIn("messages", proxied.url, {
      stream,
      metadata: { user_id: "u" },
      context_management: {},
      tools: [{ type: "web_search_20250305", name: "web_search" }],
      messages: [{ role: "user", content: [{ type: "mystery" }, { type: "text", text: "hi" }] }],
    });
    expect(answer.status).toBe(200);
    const call = await only();
    expect([...call.droppedRequestParts].sort()).toEqual([
      "context_management",
      "messages[0].content[0] (mystery)",
      "metadata",
      "tools[0] (web_search_20250305)",
    ]);
    expect(call.choices[0]?.complete).toBe(true);
  });

  it.each([true, false])("responses, stream %s: dropped, recorded, no 400", async (stream) => {
    const answer = await askIn("responses", proxied.url, {
      stream,
      store: false,
      include: ["reasoning.encrypted_content"],
      tools: [{ type: "web_search" }],
      tool_choice: "auto",
      input: [
        { type: "message", role: "user", content: [{ type: "input_text", text: "hi" }] },
        { type: "hologram" },
      ],
    });
    expect(answer.status).toBe(200);
    const call = await only();
    expect(call.droppedRequestParts).toEqual(
      expect.arrayContaining(["store", "tools[0] (web_search)", "input[1] (hologram)"]),
    );
    expect(engine.requests.at(-1)?.json).not.toHaveProperty("tool_choice");
    expect(call.choices[0]?.complete).toBe(true);
  });

  it.each(["chat", "completions"] as const)("%s: unknown members pass on", async (dialect) => {
    await askIn(dialect, proxied.url, { chat_template_kwargs: { x: 1 }, hologram: [1.5] });
    expect(engine.requests.at(-1)?.json).toMatchObject({
      chat_template_kwargs: { x: 1 },
      hologram: [1.5],
    });
    expect((await only()).droppedRequestParts).toEqual([]);
  });
});

describe("streams of every dialect", () => {
  it.each(dialectNames)("%s: compressed by the engine all the same", async (dialect) => {
    engine.setScript(async (request) => [
      { head: 200, headers: { "content-type": "text/event-stream", "content-encoding": "gzip" } },
      { write: gzipSync(await playScript(vllmScript(), request.body, request.url)) },
      { end: true },
    ]);
    const answer = await askIn(dialect, proxied.url, { stream: true });
    expect(answer.end).toBe("clean");
    expect(answer.headers).not.toHaveProperty("content-encoding");
    expect(answer.body).toMatch(/\[DONE\]|message_stop|response\.completed/);
    expect((await only()).choices[0]?.complete).toBe(true);
  });

  it.each(dialectNames)("%s: each event leaves before the next one comes", async (dialect) => {
    const arrivals: (() => void)[] = [];
    const pauses = [1, 2, 3].map(() => new Promise<void>((resolve) => arrivals.push(resolve)));
    // Each chunk is held back until bytes of an earlier one have reached the harness.
    engine.setScript(vllmScript({ betweenEvents: (index) => pauses[index - 1] }));
    let count = 0;
    const onFirstByte = (): void => {
      arrivals[count]?.();
      count += 1;
    };
    const answer = await askIn(dialect, proxied.url, { stream: true }, { onFirstByte });
    expect(answer.end).toBe("clean");
    expect(await only()).toMatchObject({ streamMode: "relayed", delivered: true });
  });
});

it.each([
  ["messages", "event: message_stop"],
  ["responses", "event: response.completed"],
] as const)("%s: an engine that ignores `stream` is no reason to do so", async (dialect, end) => {
  engine.setScript((request) => {
    const whole = { ...request.json, stream: false };
    return vllmScript()({ ...request, json: whole });
  });
  const answer = await askIn(dialect, proxied.url, { stream: true });
  expect(answer.headers["content-type"]).toContain("text/event-stream");
  expect(answer.body).toContain(end);
  const call = await only();
  expect(call).toMatchObject({ streamMode: "synthesised", delivered: true });
  expect(call.choices[0]?.complete).toBe(true);
});

describe("an engine that streams no ids, asked whole", () => {
  let blind: ScriptedEngine;
  let other: TestSidecar;
  beforeAll(async () => {
    blind = await startScriptedEngine(vllmScript({ streamsIds: false }));
    other = await startTestSidecar([blind.url], {
      keepAliveMs: 20,
      translation: { chatKeepAlive: "comment" },
    });
  });
  afterAll(async () => {
    await other.close();
    await blind.close();
  });

  it.each([
    ["chat", ": keep-alive", "[DONE]"],
    ["completions", ": keep-alive", "[DONE]"],
    ["messages", "event: ping", "event: message_stop"],
    ["responses", "event: response.in_progress", "event: response.completed"],
  ] as const)("%s: keep-alives while it works, then the answer", async (dialect, sign, end) => {
    let release = (): void => undefined;
    const working = new Promise<void>((resolve) => {
      release = resolve;
    });
    blind.setScript(vllmScript({ streamsIds: false, beforeAnswer: working }));
    let parts = 0;
    const onFirstByte = (): void => {
      parts += 1;
      if (parts === 3) release();
    };
    other.calls.length = 0;
    const answer = await askIn(dialect, other.url, { stream: true }, { onFirstByte });
    expect(answer.body.split(sign).length).toBeGreaterThan(3);
    expect(answer.body).toContain(end);
    expect(answer.end).toBe("clean");
    expect(blind.requests.at(-1)?.json["stream"] ?? false).toBe(false);
    const [call] = await other.recorded(1);
    expect(call).toMatchObject({ streamMode: "synthesised", delivered: true });
    expect(call?.choices[0]?.complete).toBe(true);
  });

  it.each(["chat", "completions"] as const)("%s: n = 2 as one stream of both", async (dialect) => {
    blind.setScript(vllmScript({ streamsIds: false }));
    other.calls.length = 0;
    const answer = await askIn(dialect, other.url, { stream: true, n: 2 });
    expect(answer.body).toContain('"index":1');
    const [call] = await other.recorded(1);
    expect(call?.choices.map(({ complete }) => complete)).toEqual([true, true]);
  });
});
