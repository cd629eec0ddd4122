import { request as httpRequest } from "node:http";
import { connect } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type EngineRequest,
  type EngineScript,
  jsonSteps,
  type ScriptedEngine,
  type Step,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { post } from "./post.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;
const open: { close(): Promise<void> }[] = [];

beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
  open.push(proxied, engine);
});
afterEach(async () => {
  for (const resource of open.splice(0)) await resource.close();
});

const chatBody = (stream: boolean): string =>
  JSON.stringify({ model: "toy", stream, messages: [{ role: "user", content: "hi" }] });

function lastRequest(): EngineRequest {
  return engine.requests.at(-1) as EngineRequest;
}

const never = new Promise<never>(() => {});
const eventStream = { "content-type": "text/event-stream" };
const chunk =
  'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n';

describe("the harness hangs up: the engine's request is closed within 100 ms", () => {
  const phases: [string, EngineScript, boolean][] = [
    ["before the response head", () => [{ until: never }], false],
    [
      "after the head, before the first chunk",
      () => [{ head: 200, headers: eventStream }, { until: never }],
      true,
    ],
    [
      "in mid-stream",
      () => [{ head: 200, headers: eventStream }, { write: chunk }, { until: never }],
      true,
    ],
    [
      "in the middle of an answer that is not streamed",
      () => [
        { head: 200, headers: { "content-type": "application/json" } },
        { write: '{"choices":' },
        { until: never },
      ],
      false,
    ],
  ];
  it.each(phases)("%s", async (_name, script, awaitsHead) => {
    engine.setScript(script);
    let fastestMs = Number.POSITIVE_INFINITY;
    // The limit is the sidecar's; a busy test machine may be slow once, but not each time.
    for (let turn = 0; turn < 50 && fastestMs >= 100; turn += 1) {
      fastestMs = Math.min(fastestMs, await hangUp(awaitsHead));
    }
    expect(fastestMs).toBeLessThan(100);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
  });

  async function hangUp(awaitsHead: boolean): Promise<number> {
    const before = engine.requests.length;
    const outgoing = httpRequest(`${proxied.url}/v1/chat/completions`, { method: "POST" });
    const head = new Promise((resolve) => outgoing.on("response", resolve));
    outgoing.on("error", () => undefined);
    outgoing.end(chatBody(true));
    await until(() => engine.requests.length > before);
    if (awaitsHead) await head;
    const hungUpAtMs = performance.now();
    outgoing.destroy();
    return (await lastRequest().aborted) - hungUpAtMs;
  }

  it("while its own request is not whole: nothing is ever sent", async () => {
    const before = engine.requests.length;
    const outgoing = httpRequest(`${proxied.url}/v1/chat/completions`, { method: "POST" });
    outgoing.on("error", () => undefined);
    const sent = new Promise<void>((resolve) => {
      outgoing.write(chatBody(true).slice(0, 10), () => resolve());
    });
    await sent;
    outgoing.destroy();
    await post(proxied.url, chatBody(false));
    expect(engine.requests.length).toBe(before + 1);
    expect(await proxied.recorded(1)).toHaveLength(1);
  });
});

describe("the engine breaks off", () => {
  it("a reset in mid-stream breaks the harness's stream, after the bytes that came", async () => {
    let onFirstByte = (): void => undefined;
    const arrived = new Promise<void>((resolve) => {
      onFirstByte = resolve;
    });
    engine.setScript(() => [
      { head: 200, headers: eventStream },
      { write: chunk },
      { until: arrived },
      { reset: true },
    ]);
    const answer = await post(proxied.url, chatBody(true), { onFirstByte });
    expect(answer).toMatchObject({ status: 200, end: "broken", body: chunk });
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ errorReason: "engine-reset", delivered: false });
  });

  it("a clean end without a finish is not passed on as one", async () => {
    engine.setScript(() => [{ head: 200, headers: eventStream }, { write: chunk }, { end: true }]);
    const answer = await post(proxied.url, chatBody(true));
    expect(answer.end).toBe("broken");
    const [call] = await proxied.recorded(1);
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: "finish-missing" });
  });

  it("a reset before the head resets the harness's connection, without an own retry", async () => {
    engine.setScript(() => [{ reset: true }]);
    // A sidecar of its own, whose canary was reset too: no connection is kept alive.
    const fresh = await startTestSidecar([engine.url]);
    open.push(fresh);
    const calls = () => engine.requests.filter((request) => request.method === "POST").length;
    const before = calls();
    await expect(post(fresh.url, chatBody(false))).rejects.toThrow(/ECONNRESET|socket hang up/);
    expect(calls() - before).toBe(1);
  });

  it("a kept-alive connection that the engine reset meanwhile is tried anew", async () => {
    let resets = 1;
    engine.setScript((request) => {
      if (request.method === "POST" && resets > 0) {
        resets -= 1;
        return [{ reset: true }];
      }
      return vllmScript()(request) as Iterable<Step>;
    });
    const answer = await post(proxied.url, chatBody(false));
    expect(answer.status).toBe(200);
    expect(resets).toBe(0);
  });

  it("an error inside the stream reaches the harness as it came", async () => {
    const error = 'data: {"error":{"message":"boom","type":"server_error"}}\n\n';
    engine.setScript(() => [
      { head: 200, headers: eventStream },
      { write: chunk },
      { write: error },
      { write: "data: [DONE]\n\n" },
      { end: true },
    ]);
    const answer = await post(proxied.url, chatBody(true));
    expect(answer.body).toBe(`${chunk}${error}data: [DONE]\n\n`);
    const [call] = await proxied.recorded(1);
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: "engine-error" });
  });

  it("silence longer than the idle limit", async () => {
    const strict = await startTestSidecar([engine.url], {
      engines: { firstByteTimeoutMs: 1_500, idleTimeoutMs: 1_500 },
    });
    open.push(strict);
    engine.setScript(() => [{ until: never }]);
    const answer = await post(strict.url, chatBody(false));
    expect(answer.status).toBe(504);
    expect(JSON.parse(answer.body)).toMatchObject({ error: { code: "engine-timeout" } });
  });
});

describe("an engine's own refusals pass through unchanged", () => {
  it.each([
    [429, { "retry-after": "7", "x-ratelimit-remaining-requests": "0" }],
    [500, { "x-should-retry": "false" }],
    [503, { "retry-after-ms": "1500", "x-request-id": "abc" }],
    [404, {}],
  ])("%s", async (status, headers) => {
    const body = '{"error": {"message":"no", "type":"t"}}\n';
    engine.setScript(() => [{ head: status, headers }, { write: body }, { end: true }]);
    const before = engine.requests.length;
    const answer = await post(proxied.url, chatBody(true));
    expect(answer).toMatchObject({ status, body, headers });
    expect(engine.requests.length - before).toBe(1);
  });

  it("Messages: in that dialect's shape, status and Retry-After kept", async () => {
    engine.setScript(() => [
      { head: 429, headers: { "retry-after": "7", "content-type": "application/json" } },
      { write: '{"error":{"message":"slow down"}}' },
      { end: true },
    ]);
    const body = JSON.stringify({ model: "toy", max_tokens: 5, messages: [] });
    const answer = await post(proxied.url, body, { path: "/v1/messages" });
    expect(answer).toMatchObject({ status: 429, headers: { "retry-after": "7" } });
    expect(JSON.parse(answer.body)).toMatchObject({
      type: "error",
      error: { type: "rate_limit_error", message: expect.stringContaining("slow down") },
    });
  });
});

describe("engines", () => {
  it("an unreachable one fails over before the first byte, and is told apart", async () => {
    const gone = await startScriptedEngine(vllmScript());
    const two = await startTestSidecar([gone.url, engine.url]);
    open.push(two);
    await gone.close();
    const before = engine.requests.length;
    const answers = await Promise.all(
      ["a", "b", "c", "d", "e", "f"].map((rollout) =>
        post(two.url, chatBody(false), { path: `/r/${rollout}/v1/chat/completions` }),
      ),
    );
    expect(answers.map((answer) => answer.status)).toEqual(Array(6).fill(200));
    expect(engine.requests.length - before).toBe(6);
  });

  it("none reachable: 503 with Retry-After, in the dialect's shape, not recorded", async () => {
    await engine.close();
    const answer = await post(proxied.url, chatBody(false));
    expect(answer).toMatchObject({ status: 503, headers: { "retry-after": "1" } });
    expect(JSON.parse(answer.body)).toMatchObject({ error: { code: "engine-unreachable" } });
    expect(proxied.calls).toEqual([]);
  });

  it("a rollout's calls stay with one engine", async () => {
    const other = await startScriptedEngine(vllmScript());
    const two = await startTestSidecar([other.url, engine.url]);
    open.push(two, other);
    for (let turn = 0; turn < 6; turn += 1) {
      await post(two.url, chatBody(false), { path: "/r/one/v1/chat/completions" });
    }
    const calls = await two.recorded(6);
    expect(new Set(calls.map((call) => call.engine)).size).toBe(1);
  });

  it("one without ids is served, but not trained on", async () => {
    const blind = await startScriptedEngine(vllmScript({ ids: "none" }));
    const other = await startTestSidecar([blind.url]);
    open.push(other, blind);
    const answer = await post(other.url, chatBody(true));
    expect(answer).toMatchObject({ status: 200, end: "clean" });
    const [call] = await other.recorded(1);
    expect(call?.choices[0]?.complete).toBe(false);
    const report = await fetch(`${other.url}/readyz`);
    expect(report.status).toBe(200);
  });

  it("one that streams no ids: asked whole, streamed to the harness", async () => {
    const sglang = await startScriptedEngine(vllmScript({ streamsIds: false }));
    const other = await startTestSidecar([sglang.url]);
    open.push(other, sglang);
    const answer = await post(other.url, chatBody(true));
    expect(answer.headers["content-type"]).toContain("text/event-stream");
    expect(answer.body.trim().endsWith("data: [DONE]")).toBe(true);
    expect(sglang.requests.at(-1)?.json["stream"]).toBe(false);
    const [call] = await other.recorded(1);
    expect(call).toMatchObject({ streamMode: "synthesised", delivered: true });
    expect(call?.choices[0]?.complete).toBe(true);
  });
});

describe("what the sidecar refuses itself", () => {
  it("a request that is too large: 413 in the dialect's shape", async () => {
    const small = await startTestSidecar([engine.url], { limits: { maxRequestBytes: 100 } });
    open.push(small);
    const body = JSON.stringify({ model: "toy", messages: ["x".repeat(200)] });
    const answer = await post(small.url, body, { path: "/v1/messages" });
    expect(answer.status).toBe(413);
    expect(JSON.parse(answer.body)).toMatchObject({ error: { type: "request_too_large" } });
  });

  it("a WebSocket upgrade: 426", async () => {
    const socket = connect(Number(new URL(proxied.url).port), "127.0.0.1");
    socket.write(
      "GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nopenai-beta: responses_websockets=2026-02-06\r\n\r\n",
    );
    const parts: Buffer[] = [];
    for await (const part of socket) parts.push(part as Buffer);
    const text = Buffer.concat(parts).toString();
    expect(text).toMatch(/^HTTP\/1\.1 426 /);
    expect(text.toLowerCase()).toContain("connection: close");
  });

  it("an offer of HTTP/2, which Java's client makes, is ignored", async () => {
    const body = chatBody(false);
    const socket = connect(Number(new URL(proxied.url).port), "127.0.0.1");
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    );
    let text = "";
    for await (const part of socket) {
      text += String(part);
      if (text.includes("completion_tokens")) break;
    }
    expect(text).toMatch(/^HTTP\/1\.1 200 /);
    expect(lastRequest().rawHeaders.join("\n").toLowerCase()).not.toContain("http2");
  });

  it.each([
    ["GET", "/v1/embeddings", 404],
    ["GET", "/v1/chat/completions", 405],
    ["GET", "/proxy/rollout/a/attempt/b/mode/other/openai/v1/chat/completions", 404],
  ])("%s %s", async (method, path, status) => {
    const response = await fetch(`${proxied.url}${path}`, { method });
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { message: expect.any(String) } });
    const reached = engine.requests.filter((request) => request.method === method);
    expect(reached.some((request) => request.url === path)).toBe(false);
  });

  it("HEAD / answers", async () => {
    const response = await fetch(proxied.url, { method: "HEAD" });
    expect(response.status).toBe(200);
  });
});

describe("request bodies that are no JSON", () => {
  it("go to the engine as they came; its answer comes back", async () => {
    engine.setScript(() => jsonSteps(400, { error: { message: "bad json" } }));
    const answer = await post(proxied.url, '{"model": ');
    expect(answer.status).toBe(400);
    expect(lastRequest().body.toString()).toBe('{"model": ');
  });
});

it.each([
  ["a page of a proxy", "<html>ok</html>", "answer-without-choice"],
  ["nothing", "", "answer-without-choice"],
  ["an error", '{"error":{"message":"no","type":"x"}}', "engine-error"],
])("a good status without an answer is recorded as a failure: %s", async (_name, text, reason) => {
  engine.setScript(() => [
    { head: 200, headers: { "content-type": "application/json" } },
    { write: text },
    { end: true },
  ]);
  const answer = await fetch(`${proxied.url}/v1/chat/completions`, {
    method: "POST",
    body: chatBody(false),
  });
  expect(await answer.text()).toBe(text);
  const [call] = await proxied.recorded(1);
  expect(call).toMatchObject({ httpStatus: 200, choices: [], errorReason: reason });
});
