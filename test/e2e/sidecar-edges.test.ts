import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, createServer, type Socket } from "node:net";
import * as zlib from "node:zlib";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openLog } from "../../runtime/log.ts";
import type { RecordSink } from "../../sidecar/capture/record-sink.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
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

  it("says that no engine answers, and is good again when one does", async () => {
    const proxied = await startTestSidecar([engine.url]);
    open.push(proxied);
    expect((await report(proxied.url))[0]).toBe(200);
    const port = Number(new URL(engine.url).port);
    await engine.close();
    // A call finds out; from then on the engine is asked until it answers.
    expect((await post(proxied.url)).status).toBe(503);
    expect(await report(proxied.url)).toEqual([503, ["engine-unreachable"]]);
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
