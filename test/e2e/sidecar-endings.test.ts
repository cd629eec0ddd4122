import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { connect, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { DialectName } from "../../sidecar/dialects/dialect.ts";
import { readEvents } from "../conformance/run-dialect.ts";
import {
  type EngineScript,
  jsonSteps,
  type ScriptedEngine,
  type Step,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { post } from "./post.ts";
import { askIn, dialectNames, dialectRequests } from "./sidecar-dialect-requests.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;
const open: { close(): Promise<void> }[] = [];

beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url], { keepAliveMs: 0 });
  open.push(engine, proxied);
});
afterEach(async () => {
  for (const resource of open.splice(0).reverse()) await resource.close();
});

const never = new Promise<never>(() => {});
const eventStream = { "content-type": "text/event-stream" };

function chunkOf(dialect: DialectName, more: object = {}): string {
  const said = dialect === "completions" ? { text: "a" } : { delta: { content: "a" } };
  const choice = { index: 0, ...said, finish_reason: null, ...more };
  return `data: ${JSON.stringify({ id: "x", choices: [choice] })}\n\n`;
}

describe("in every dialect, a harness that hangs up ends the engine's request within 100 ms", () => {
  const phases: [string, (dialect: DialectName) => EngineScript, "nothing" | "head" | "bytes"][] = [
    ["before the response head", () => () => [{ until: never }], "nothing"],
    [
      "before the first chunk",
      () => () => [{ head: 200, headers: eventStream }, { until: never }],
      "head",
    ],
    [
      "in mid-stream",
      (dialect) => () => [
        { head: 200, headers: eventStream },
        { write: chunkOf(dialect) },
        { until: never },
      ],
      "bytes",
    ],
  ];
  const cases = dialectNames.flatMap((dialect) =>
    phases.map(([name, script, waitsFor]) => [dialect, name, script, waitsFor] as const),
  );

  it.each(cases)("%s, %s", async (dialect, _name, script, waitsFor) => {
    engine.setScript(script(dialect));
    let fastestMs = Number.POSITIVE_INFINITY;
    // The limit is the sidecar's; a busy test machine may be slow once, but not each time.
    for (let turn = 0; turn < 50 && fastestMs >= 100; turn += 1) {
      fastestMs = Math.min(fastestMs, await hangUp(proxied.url, dialect, waitsFor));
    }
    expect(fastestMs).toBeLessThan(100);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ dialect, delivered: false, errorReason: "harness-aborted" });
    expect(call?.choices.every(({ complete }) => !complete)).toBe(true);
    expect(proxied.sidecar.gateStatus().inFlight).toBe(0);
  });

  it("also while a stream is made up and the engine has not answered", async () => {
    const whole = await startScriptedEngine(vllmScript({ streamsIds: false }));
    const other = await startTestSidecar([whole.url]);
    open.push(whole, other);
    whole.setScript(() => [{ until: never }]);
    expect(await hangUp(other.url, "messages", "nothing", whole)).toBeLessThan(1_000);
    expect(whole.requests.at(-1)?.json["stream"]).toBeUndefined();
    const [call] = await other.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
  });

  async function hangUp(
    url: string,
    dialect: DialectName,
    waitsFor: "nothing" | "head" | "bytes",
    asked = engine,
  ): Promise<number> {
    const before = asked.requests.length;
    const { path, body } = dialectRequests[dialect];
    const outgoing = httpRequest(`${url}${path}`, { method: "POST" });
    const head = new Promise<void>((resolve) => {
      outgoing.on("response", (response) => {
        response.on("error", () => undefined);
        if (waitsFor === "bytes") response.once("data", () => resolve());
        else resolve();
      });
    });
    outgoing.on("error", () => undefined);
    outgoing.end(JSON.stringify({ ...body, stream: true }));
    await until(() => asked.requests.length > before);
    if (waitsFor !== "nothing") await head;
    const hungUpAtMs = performance.now();
    outgoing.destroy();
    return ((await asked.requests.at(-1)?.aborted) ?? Number.NaN) - hungUpAtMs;
  }
});

describe("in every dialect, an engine that breaks off is no end", () => {
  const breaks: [string, Step, string][] = [
    ["resets", { reset: true }, "engine-reset"],
    ["ends politely", { end: true }, "finish-missing"],
  ];
  const cases = dialectNames.flatMap((dialect) =>
    breaks.map(([name, ending, reason]) => [dialect, name, ending, reason] as const),
  );

  it.each(cases)("%s, it %s in mid-stream", async (dialect, _name, ending, reason) => {
    let arrive = (): void => undefined;
    const arrived = new Promise<void>((resolve) => {
      arrive = resolve;
    });
    engine.setScript(() => [
      { head: 200, headers: eventStream },
      { write: chunkOf(dialect) },
      { until: arrived },
      ending,
    ]);
    const answer = await askIn(dialect, proxied.url, { stream: true }, { onFirstByte: arrive });
    expect(answer).toMatchObject({ status: 200, end: "broken" });
    expectFailure(dialect, answer.body);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false });
    expect([call?.errorReason, call?.choices[0]?.incompleteReason]).toContain(reason);
  });

  it.each(dialectNames)("%s, it falls silent: the idle limit", async (dialect) => {
    const strict = await startTestSidecar([engine.url], {
      keepAliveMs: 0,
      engines: { idleTimeoutMs: 300 },
    });
    open.push(strict);
    engine.setScript(() => [
      { head: 200, headers: eventStream },
      { write: chunkOf(dialect) },
      { until: never },
    ]);
    const answer = await askIn(dialect, strict.url, { stream: true });
    expect(answer).toMatchObject({ status: 200, end: "broken" });
    expectFailure(dialect, answer.body);
    const [call] = await strict.recorded(1);
    expect(call).toMatchObject({ errorReason: "engine-timeout", delivered: false });
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
  });

  it("a line without an end is broken off at the cap", async () => {
    const part = "x".repeat(1_000_000);
    engine.setScript(function* () {
      yield { head: 200, headers: eventStream };
      yield { write: `${chunkOf("chat")}data: ` };
      for (let count = 0; count < 200; count += 1) yield { write: part };
      yield { end: true };
    });
    const answer = await askIn("chat", proxied.url, { stream: true });
    expect(answer).toMatchObject({ end: "broken", body: chunkOf("chat") });
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "engine-reset" });
  });

  it("a request and an answer that are nested too deeply end nothing but themselves", async () => {
    const deep = `${"[".repeat(50_000)}${"]".repeat(50_000)}`;
    const tools = JSON.parse(`[{"name":"f","input_schema":{}}]`) as object;
    const { path, body } = dialectRequests.messages;
    const request = JSON.stringify({ ...body, tools }).replace(
      /"input_schema":\{/,
      `$&"x":${deep}`,
    );
    const refused = await post(proxied.url, request, { path });
    expect(refused.status).toBe(400);
    const call = `{"id":"a","function":{"name":"f","arguments":{"x":${deep}}}}`;
    engine.setScript(() =>
      jsonSteps(
        200,
        `{"choices":[{"index":0,"finish_reason":"stop","message":{"tool_calls":[${call}]}}]}`,
      ),
    );
    expect((await askIn("messages", proxied.url)).status).toBe(200);
    expect((await askIn("responses", proxied.url)).status).toBe(200);
    engine.setScript(vllmScript());
    expect((await askIn("messages", proxied.url)).status).toBe(200);
    expect(proxied.sidecar.gateStatus().inFlight).toBe(0);
  });

  it("a whole answer beyond the cap is no answer", async () => {
    const small = await startTestSidecar([engine.url], { limits: { maxResponseBytes: 5_000 } });
    open.push(small);
    engine.setScript(vllmScript({ answer: () => ({ content: "x".repeat(9_000) }) }));
    await expect(askIn("chat", small.url)).rejects.toThrow(/ECONNRESET|socket hang up/);
    const [call] = await small.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "engine-reset" });
  });

  /** The bytes of before, then the dialect's own way to say that it failed. */
  function expectFailure(dialect: DialectName, body: string): void {
    if (dialect === "chat" || dialect === "completions") {
      expect(body).toBe(chunkOf(dialect));
      return;
    }
    const names = readEvents(body).map(([name]) => name);
    expect(names.at(-1)).toBe(dialect === "messages" ? "error" : "response.failed");
    expect(names).not.toContain("message_stop");
    expect(names).not.toContain("response.completed");
    expect(body).toMatch(dialect === "messages" ? /"text":"a"/ : /"delta":"a"/);
  }
});

describe("invariant 6: delivered means that the last byte was flushed to a harness that was there", () => {
  /** A socket of the test's own: it sees each byte, and hangs up where it wants. */
  async function ask(dialect: DialectName, stream: boolean): Promise<Socket> {
    const { path, body } = dialectRequests[dialect];
    const text = JSON.stringify({ ...body, stream });
    const socket = connect(Number(new URL(proxied.url).port), "127.0.0.1");
    socket.on("error", () => undefined);
    await once(socket, "connect");
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
    );
    return socket;
  }

  /** Reads up to `end`, then hangs up without a word. */
  async function readTo(socket: Socket, end: string): Promise<string> {
    let text = "";
    for await (const part of socket) {
      text += String(part);
      if (text.includes(end)) break;
    }
    socket.destroy();
    return text;
  }

  const ways = dialectNames.flatMap((dialect) =>
    [true, false].map((stream) => [dialect, stream] as const),
  );

  it.each(ways)("%s, stream %s: closed right after the last byte", async (dialect, stream) => {
    const socket = await ask(dialect, stream);
    const text = stream ? await readTo(socket, "\r\n0\r\n\r\n") : await readWhole(socket);
    expect(text).toMatch(/^HTTP\/1\.1 200 /);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true });
    expect(call?.errorReason).toBeUndefined();
    expect(call?.choices[0]?.complete).toBe(true);
  });

  it.each(dialectNames)("%s: closed before the engine's last event", async (dialect) => {
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const script = vllmScript();
    engine.setScript(async function* (request) {
      const steps = [];
      for await (const step of await script(request)) steps.push(step);
      for (const [index, step] of steps.entries()) {
        // Before the chunk that holds the finish reason.
        if (index === steps.length - 4) yield { until: held };
        yield step;
      }
    });
    const socket = await ask(dialect, true);
    await readTo(socket, "choice");
    await engine.requests.at(-1)?.aborted;
    release();
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: "finish-missing" });
    expect(call?.choices[0]?.responseIds?.length).toBeGreaterThan(0);
  });

  it("closed while the end of a large answer still waits to be read", async () => {
    const answer = "word ".repeat(2_000_000);
    engine.setScript(vllmScript({ answer: () => ({ content: answer }), logprobs: "none" }));
    const socket = await ask("chat", false);
    await readTo(socket, "word word");
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false });
  });

  it("a harness whose process ends says so with the end of its side alone", async () => {
    engine.setScript(() => [{ until: never }]);
    const before = engine.requests.length;
    const socket = await ask("chat", true);
    await until(() => engine.requests.length > before);
    socket.end();
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
  });

  async function readWhole(socket: Socket): Promise<string> {
    let text = "";
    for await (const part of socket) {
      text += String(part);
      const head = text.indexOf("\r\n\r\n");
      const length = /content-length: (\d+)/i.exec(text)?.[1];
      if (head !== -1 && Buffer.byteLength(text.slice(head + 4)) >= Number(length)) break;
    }
    socket.destroy();
    return text;
  }
});
