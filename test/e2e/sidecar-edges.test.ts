import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as zlib from "node:zlib";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openLog } from "../../runtime/log.ts";
import type { RecordSink } from "../../sidecar/capture/record-sink.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";
import {
  type ScriptedEngine,
  type Step,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { createMemorySink, startTestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
const open: { close(): Promise<void> }[] = [];

beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
  open.push(engine);
});
afterEach(async () => {
  for (const resource of open.splice(0).reverse()) await resource.close();
});

const messages = [{ role: "user", content: "hi" }];
const chat = JSON.stringify({ model: "toy", messages });

function post(
  url: string,
  body: string | Buffer = chat,
  path = "chat/completions",
  init: RequestInit = {},
): Promise<Response> {
  return fetch(`${url}/v1/${path}`, {
    method: "POST",
    body: typeof body === "string" ? body : new Uint8Array(body),
    ...init,
  });
}

/** With a sink of the test's own; `controller` makes it ask for tokens. */
async function startWithSink(sink: RecordSink, overrides: object = {}): Promise<Sidecar> {
  const config = sidecarConfigSchema.parse({
    port: 0,
    logLevel: "silent",
    engines: { urls: [`${engine.url}/v1`], healthIntervalMs: 50 },
    ...overrides,
  });
  const log = openLog({ level: "silent", process: "sidecar" });
  const sidecar = await Sidecar.start({ config, version: "test", log, sink });
  open.push({ close: () => sidecar.close(1_000) });
  return sidecar;
}

describe("a call of unknown identity", () => {
  it("is refused and recorded as an event, once for many, without its credential", async () => {
    const memory = createMemorySink();
    const sidecar = await startWithSink(memory.sink, { controller: { address: "127.0.0.1:9" } });
    for (let turn = 0; turn < 20; turn += 1) {
      const headers = { authorization: `Bearer sk-secret-${turn}` };
      const answer = await post(sidecar.url, chat, "messages", { headers });
      expect(answer.status).toBe(401);
    }
    expect(memory.events).toHaveLength(1);
    const [event] = memory.events;
    expect(event).toMatchObject({ eventType: "identity-refused", rolloutId: "" });
    expect(JSON.parse(event?.dataJson ?? "")).toMatchObject({
      reason: "unknown-identity",
      dialect: "messages",
      status: 401,
      count: 1,
    });
    expect(JSON.stringify(memory.events)).not.toContain("sk-secret");
  });
});

describe("readiness", () => {
  const report = async (url: string) => {
    const response = await fetch(`${url}/readyz`);
    return [response.status, ((await response.json()) as { problems?: string[] }).problems];
  };

  it("says that records cannot be kept, and is good again when they can", async () => {
    const memory = createMemorySink();
    let isHealthy = false;
    const sink = Object.defineProperty({ ...memory.sink }, "isHealthy", {
      get: () => isHealthy,
    }) as RecordSink;
    const sidecar = await startWithSink(sink);
    await sidecar.probed(10_000);
    expect(await report(sidecar.url)).toEqual([503, ["spool-unusable"]]);
    // The harness is never harmed: its calls are served all the same.
    expect((await post(sidecar.url)).status).toBe(200);
    isHealthy = true;
    expect((await report(sidecar.url))[0]).toBe(200);
  });

  it("says that the controller whose key it needs was never reached", async () => {
    const config = sidecarConfigSchema.parse({
      port: 0,
      engines: { urls: [`${engine.url}/v1`] },
      controller: { address: "127.0.0.1:9" },
      spool: { dir: mkdtempSync(join(tmpdir(), "outrigger-edges-")) },
    });
    const log = openLog({ level: "silent", process: "sidecar" });
    const sidecar = await Sidecar.start({ config, version: "test", log });
    open.push({
      close: async () => {
        await sidecar.close(0);
        rmSync(config.spool.dir, { recursive: true, force: true });
      },
    });
    await sidecar.probed(10_000);
    expect(await report(sidecar.url)).toEqual([503, ["controller-unreachable"]]);
  });

  it("says that no engine answers, and is good again when one does", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    expect((await report(proxied.url))[0]).toBe(200);
    const port = Number(new URL(engine.url).port);
    await engine.close();
    // A call finds out; from then on the engine is asked until it answers.
    expect((await post(proxied.url)).status).toBe(503);
    expect(await report(proxied.url)).toEqual([503, ["engine-unreachable"]]);
    const metrics = await (await fetch(`${proxied.url}/metrics`)).text();
    expect(metrics).toContain('outrigger_sidecar_refusals_total{reason="engine-unreachable"} 1');
    expect((await fetch(`${proxied.url}/healthz`)).status).toBe(200);
    const again = createHttpServer((_request, response) => response.end("{}"));
    again.listen(port, "127.0.0.1");
    await once(again, "listening");
    for (let status: unknown = 503; status !== 200; ) [status] = await report(proxied.url);
    await proxied.close();
    again.closeAllConnections();
    again.close();
  });
});

describe("the canary", () => {
  it("that fails marks calls canary-failed although their own ids are whole", async () => {
    engine.setScript(vllmScript({ ids: "none" }));
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    engine.setScript(vllmScript());
    await post(proxied.url);
    const [call] = await proxied.recorded(1);
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: "canary-failed" });
  });

  it("runs again when the policy version changes; then, too, it decides about training", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const canaries = () =>
      engine.requests.filter(({ json }) => JSON.stringify(json).includes("Say hello.")).length;
    const endpoints = [{ url: `${engine.url}/v1` }];
    const first = canaries();
    proxied.sidecar.updatePolicy({ version: 0, endpoints });
    proxied.sidecar.updatePolicy({ version: 1, endpoints });
    await until(() => canaries() === first + 1);
    engine.setScript(vllmScript({ logprobs: "none" }));
    proxied.sidecar.updatePolicy({ version: 2, endpoints });
    // One more request shows that it no longer holds, then the whole canary says what is wrong.
    await until(() => canaries() === first + 4);
    await until(() => proxied.sidecar.gateStatus().inFlight === 0);
    const problem = async () => (await proxied.sidecar.probed(1_000))[0]?.canary?.problem;
    expect(await problem()).toBe("logprobs-missing");
    engine.setScript(vllmScript());
    await post(proxied.url);
    const [call] = await proxied.recorded(1);
    expect(call?.choices[0]?.incompleteReason).toBe("canary-failed");
    proxied.sidecar.updatePolicy({ version: 3, endpoints });
    await until(() => canaries() === first + 6);
  });
});

describe("a request body that is encoded", () => {
  it.each<[string, (bytes: Buffer) => Buffer]>([
    ["gzip", zlib.gzipSync],
    ["deflate", zlib.deflateSync],
    ["br", zlib.brotliCompressSync],
  ])("%s: the engine gets it decoded, with the capture spliced in", async (encoding, encode) => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const headers = { "content-encoding": encoding, "content-type": "application/json" };
    const answer = await post(proxied.url, encode(Buffer.from(chat)), undefined, { headers });
    expect(answer.status).toBe(200);
    const request = engine.requests.at(-1);
    expect(request?.headers["content-encoding"]).toBeUndefined();
    expect(request?.body.toString()).toMatch(/^\{"model":"toy","messages":\[.*"return_token_ids"/);
    const [call] = await proxied.recorded(1);
    expect(call?.choices[0]?.complete).toBe(true);
  });

  it.each(["chat/completions", "responses", "messages"])(
    "in a way that cannot be undone: 415 in the shape of %s, naming what can",
    async (path) => {
      const proxied = await startTestSidecar([engine.url]);
      open.push(proxied);
      const before = engine.requests.length;
      const headers = { "content-encoding": "rot13" };
      const answer = await post(proxied.url, chat, path, { headers });
      expect(answer.status).toBe(415);
      expect(answer.headers.get("accept-encoding")).toMatch(/^gzip, deflate, br/);
      const { error } = (await answer.json()) as { error: { message: string } };
      expect(error.message).toContain("rot13");
      const broken = await post(proxied.url, chat, path, {
        headers: { "content-encoding": "gzip" },
      });
      expect(broken.status).toBe(400);
      expect(engine.requests.length).toBe(before);
    },
  );
});

describe("what has to wait", () => {
  it.each(["responses", "messages"])(
    "an engine that is silent before its first event: %s gets keep-alives",
    async (path) => {
      const proxied = await startTestSidecar([engine.url], { keepAliveMs: 20 });
      open.push(proxied);
      let release: () => void = () => undefined;
      const silence = new Promise<void>((resolve) => {
        release = resolve;
      });
      engine.setScript(vllmScript({ beforeAnswer: silence }));
      const body = { model: "toy", stream: true, max_tokens: 9, input: "hi", messages };
      const answer = await post(proxied.url, JSON.stringify(body), path);
      const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
      let text = "";
      const keepAlive = path === "messages" ? /event: ping/g : /event: response\.in_progress/g;
      while ((text.match(keepAlive)?.length ?? 0) < 3) {
        text += Buffer.from((await reader.read()).value ?? []).toString();
      }
      release();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        text += Buffer.from(part.value).toString();
      }
      expect(text).toMatch(/event: (message_stop|response\.completed)/);
      expect(text.match(/event: (message_start|response\.created)/g)).toHaveLength(1);
    },
  );

  it("a call while the spool is full: held until it drains, then served and kept", async () => {
    const memory = createMemorySink();
    let isUnderPressure = true;
    const sink = Object.defineProperty({ ...memory.sink }, "isUnderPressure", {
      get: () => isUnderPressure,
    }) as RecordSink;
    const sidecar = await startWithSink(sink);
    await sidecar.probed(10_000);
    const before = engine.requests.length;
    const held = post(sidecar.url);
    // Another whole exchange with the sidecar: it has had the time to ask the engine.
    for (let turn = 0; turn < 5; turn += 1) await (await fetch(`${sidecar.url}/metrics`)).text();
    expect(engine.requests.length).toBe(before);
    isUnderPressure = false;
    expect((await held).status).toBe(200);
    const [call] = await memory.recorded(1);
    expect(call?.choices[0]?.complete).toBe(true);
  });

  it("a harness that hangs up while the engine's connection is being made", async () => {
    // It takes connections and never answers the greeting of TLS: never connected.
    const sockets: Socket[] = [];
    const deaf = createServer((socket) => {
      socket.on("error", () => undefined);
      sockets.push(socket);
    });
    deaf.listen(0, "127.0.0.1");
    await once(deaf, "listening");
    const { port } = deaf.address() as AddressInfo;
    open.push({
      close: async () => {
        for (const socket of sockets) socket.destroy();
        deaf.close();
      },
    });
    const proxied = await startTestSidecar([`https://127.0.0.1:${port}`], {
      engines: { canaryTimeoutMs: 20, healthIntervalMs: 60_000 },
    });
    open.push(proxied);
    const gone = new AbortController();
    const asked = post(proxied.url, chat, undefined, { signal: gone.signal });
    await until(() => proxied.sidecar.gateStatus().inFlight === 1);
    gone.abort();
    await expect(asked).rejects.toThrow();
    await until(() => proxied.sidecar.gateStatus().inFlight === 0);
    expect(proxied.calls).toEqual([]);
  });
});

/** What comes back for these bytes on a connection of their own, until `enough` or its end. */
async function exchange(
  url: string,
  bytes: string | Buffer,
  enough: (text: string) => boolean = () => false,
): Promise<string> {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  let text = "";
  socket.on("error", () => undefined);
  socket.on("data", (data: Buffer) => {
    text += data.toString("latin1");
    if (enough(text)) socket.destroy();
  });
  socket.write(bytes);
  await once(socket, "close");
  return text;
}

function requestBytes(body = chat, target = "/v1/chat/completions", head = ""): string {
  const length = Buffer.byteLength(body);
  return `POST ${target} HTTP/1.1\r\nhost: x\r\ncontent-length: ${length}\r\n${head}\r\n${body}`;
}

const answerCount = (text: string): number => text.split("HTTP/1.1 200 OK").length - 1;

describe("requests one after the other on a connection, without waiting", () => {
  it("are answered in order, and delivered", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const text = await exchange(
      proxied.url,
      requestBytes() + requestBytes(chat.replace("hi", "ho")),
      (soFar) => answerCount(soFar) === 2 && soFar.endsWith("}"),
    );
    expect(answerCount(text)).toBe(2);
    const calls = await proxied.recorded(2);
    expect(calls.map((call) => call.delivered)).toEqual([true, true]);
  });

  it("end with their connection, also those whose turn has not come", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => undefined) }));
    const before = engine.requests.length;
    const socket = connect(Number(new URL(proxied.url).port), "127.0.0.1");
    socket.write(requestBytes() + requestBytes(chat.replace("hi", "ho")));
    await until(() => engine.requests.length === before + 2);
    socket.destroy();
    const calls = await proxied.recorded(2);
    expect(calls.map((call) => [call.delivered, call.errorReason])).toEqual([
      [false, "harness-aborted"],
      [false, "harness-aborted"],
    ]);
    await Promise.all(engine.requests.slice(before).map((request) => request.aborted));
  });
});

describe("a request that is no HTTP, or too much of it", () => {
  it.each([
    ["another protocol", "\x16\x03\x01\x02\x00\r\n\r\n", 400],
    [
      "two lengths",
      "POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
      400,
    ],
    ["headers of 100 KB", requestBytes(chat, undefined, `x-a: ${"a".repeat(100_000)}\r\n`), 431],
  ])("%s: is told so", async (_name, bytes, status) => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const [head = "", body = ""] = (await exchange(proxied.url, bytes)).split("\r\n\r\n");
    expect(head).toContain(`HTTP/1.1 ${status} `);
    expect(JSON.parse(body)).toMatchObject({ error: { code: "unreadable-request" } });
  });

  it("headers of 20 KB, and a whole URL as to a proxy, are served", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const target = "http://model.local/v1/chat/completions";
    const bytes = requestBytes(chat, target, `x-a: ${"a".repeat(20_000)}\r\nconnection: close\r\n`);
    expect(answerCount(await exchange(proxied.url, bytes))).toBe(1);
    expect(engine.requests.at(-1)?.headers["x-a"]).toHaveLength(20_000);
  });

  it("a body without a length that is too large: a client that sends it whole hears why", async () => {
    const limits = { maxRequestBytes: 200_000 };
    const proxied = await startTestSidecar([engine.url], { limits });
    open.push(proxied);
    const chunk = `${(50_000).toString(16)}\r\n${" ".repeat(50_000)}\r\n`;
    const head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    const text = await exchange(proxied.url, `${head}${chunk.repeat(7)}0\r\n\r\n`);
    expect(text).toContain("HTTP/1.1 413 ");
    expect(text).toContain("limits.maxRequestBytes");
  });
});

describe("an engine", () => {
  it('that reads "stream": 1 as true is relayed as a stream', async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    let release: () => void = () => undefined;
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const event = 'data: {"choices":[{"index":0,"delta":{},"token_ids":[5]}]}\n\n';
    engine.setScript(() => [
      { head: 200, headers: { "content-type": "text/event-stream" } },
      { write: event },
      { until: gate },
      { write: "data: [DONE]\n\n" },
      { end: true },
    ]);
    const answer = await post(proxied.url, chat.replace("{", '{"stream":1,'));
    const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
    const first = Buffer.from((await reader.read()).value ?? []).toString();
    expect(first).toBe(event.replace(',"token_ids":[5]', ""));
    release();
    expect(Buffer.from((await reader.read()).value ?? []).toString()).toBe("data: [DONE]\n\n");
  });

  it("that takes connections and is silent is not given ever more of them", async () => {
    const sockets = new Set<Socket>();
    let accepted = 0;
    const silent = createServer((socket) => {
      accepted += 1;
      sockets.add(socket.resume());
      socket.on("error", () => undefined);
      socket.on("close", () => sockets.delete(socket));
    });
    silent.listen(0, "127.0.0.1");
    await once(silent, "listening");
    const { port } = silent.address() as AddressInfo;
    open.push({
      close: async () => {
        for (const socket of sockets) socket.destroy();
        silent.close();
      },
    });
    const engines = { canaryTimeoutMs: 20, healthIntervalMs: 10 };
    const starting = startTestSidecar([`http://127.0.0.1:${port}`], { engines });
    starting.catch(() => undefined);
    // One canary after another, each with a time limit; the questions about health beside them.
    await until(() => accepted >= 20);
    expect(sockets.size).toBeLessThan(5);
    await (await starting).close();
  });

  it("that answers 204 is not given a length that it did not say", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    engine.setScript(() => [{ head: 204 }, { end: true }]);
    const answer = await post(proxied.url);
    expect([answer.status, answer.headers.get("content-length")]).toEqual([204, null]);
  });

  it("that compresses a long stream waits for a slow reader all the same", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    const event = `data: {"choices":[{"index":0,"delta":{"content":"${"x".repeat(1_000)}"}}]}\n\n`;
    const bytes = zlib.gzipSync(`${event.repeat(16_000)}data: [DONE]\n\n`);
    const writes: Step[] = [];
    for (let at = 0; at < bytes.length; at += 500)
      writes.push({ write: bytes.subarray(at, at + 500) });
    engine.setScript(() => [
      { head: 200, headers: { "content-type": "text/event-stream", "content-encoding": "gzip" } },
      ...writes,
      { end: true },
    ]);
    const socket = connect(Number(new URL(proxied.url).port), "127.0.0.1");
    open.push({ close: async () => void socket.destroy() });
    socket.pause();
    socket.write(requestBytes(chat.replace("{", '{"stream":true,')));
    const buffered = async () =>
      Number(
        /buffered_bytes (\d+)/.exec(await (await fetch(`${proxied.url}/metrics`)).text())?.[1],
      );
    // Each look is an exchange with the sidecar: it has had the time to take what it would take.
    let largest = 0;
    for (let look = 0; look < 200; look += 1) largest = Math.max(largest, await buffered());
    expect(largest).toBeGreaterThan(0);
    expect(largest).toBeLessThan(300_000);
    let received = 0;
    socket.on("data", (data: Buffer) => {
      received += data.length;
    });
    socket.resume();
    const [call] = await proxied.recorded(1);
    expect(call?.delivered).toBe(true);
    expect(received).toBeGreaterThan(16_000_000);
  });
});
