import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { pino } from "pino";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type IngestServer, serveSampleStream } from "../../controller/ingest/ingest-server.ts";
import { type CallStore, openCallStore } from "../../controller/store/call-store.ts";
import { migrations } from "../../controller/store/migrations.ts";
import { openDatabase } from "../../controller/store/open-database.ts";
import { openTokenVerifier, signCapability } from "../../runtime/capability-token.ts";
import { generateTokenKeys } from "../../runtime/capability-token-keys.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "../../runtime/grpc-server.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { until } from "./sidecar-support.ts";

const keys = generateTokenKeys();
const log = pino({ level: "silent" });
let folder: string;
let engine: ScriptedEngine;
let ingest: IngestServer;
let store: CallStore;
let sidecar: Sidecar;
let stop: () => Promise<void>;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
});
afterAll(() => engine.close());

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "outrigger-sidecar-"));
  const database = await openDatabase({ path: join(folder, "run.db"), migrations });
  store = await openCallStore(database);
  const server = createGrpcServer();
  ingest = serveSampleStream(server, {
    store,
    verifier: await openTokenVerifier(keys.publicKeyPem),
    tokenPublicKeyPem: keys.publicKeyPem,
    capture: {
      captureText: true,
      redactionPatterns: [],
      trainOverrides: { temperature: 0.5, top_p: 1 },
      evalOverrides: { temperature: 0 },
      requireCanary: true,
      deduplicateRetries: true,
    },
    policy: {
      model: "toy",
      version: 5,
      endpoints: [{ url: `${engine.url}/v1`, apiKey: "engine-key" }],
    },
    log,
  });
  const port = await bindGrpcServer(server, { host: "127.0.0.1", port: 0 });
  sidecar = await Sidecar.start({
    config: sidecarConfigSchema.parse({
      port: 0,
      sidecarId: "sc1",
      controller: { address: `127.0.0.1:${port}`, token: await token({ scopes: ["sidecar"] }) },
      spool: { dir: join(folder, "spool") },
      engines: { healthIntervalMs: 50 },
    }),
    version: "test",
    log,
  });
  await ingest.waitForSidecars(1);
  await until(() => sidecar.readiness().ready);
  stop = async () => {
    await sidecar.close(2_000);
    await ingest.close();
    await closeGrpcServer(server, 100);
    await database.destroy();
  };
});
afterEach(async () => {
  await stop();
  rmSync(folder, { recursive: true, force: true });
});

interface TokenChange {
  readonly rolloutId?: string;
  readonly scopes?: readonly ("call" | "sidecar" | "event")[];
  readonly mode?: "train" | "eval";
  readonly expiresAtMs?: number;
}

function token(change: TokenChange = {}): Promise<string> {
  return signCapability(
    {
      rolloutId: change.rolloutId ?? "*",
      attemptId: change.rolloutId === undefined ? "*" : "a0",
      scopes: change.scopes ?? ["call"],
      mode: change.mode ?? "train",
      expiresAtMs: change.expiresAtMs ?? Date.now() + 60_000,
    },
    keys.privateKeyPem,
  );
}

const chat = { model: "toy", messages: [{ role: "user" as const, content: "hi" }] };
const client = (apiKey: string, path = "/v1") =>
  new OpenAI({ baseURL: `${sidecar.url}${path}`, apiKey, maxRetries: 0 });

async function storedCalls(rolloutId: string, count: number) {
  await ingest.settle({ timeoutMs: 10_000 });
  const calls = await store.callsOfAttempt(rolloutId, "a0");
  expect(calls).toHaveLength(count);
  return calls;
}

describe("a sidecar with its controller", () => {
  it("knows a rollout by its token, and its calls arrive complete", async () => {
    await client(await token({ rolloutId: "r1" })).chat.completions.create(chat);
    const [call] = await storedCalls("r1", 1);
    expect(call).toMatchObject({ complete: true, delivered: true, policyVersion: 5 });
    expect(call?.promptIds?.length).toBe(call?.usage?.promptTokens);
    const request = engine.requests.at(-1);
    expect(request?.headers["authorization"]).toBe("Bearer engine-key");
    expect(request?.json).toMatchObject({ temperature: 0.5, top_p: 1 });
  });

  it("knows it by the token in the path, whatever the API key is", async () => {
    const capability = await token({ rolloutId: "r2" });
    await client("sk-own", `/r/${capability}/v1`).chat.completions.create(chat);
    await storedCalls("r2", 1);
    expect(engine.requests.at(-1)?.rawHeaders.join("\n")).not.toContain("sk-own");
    expect(engine.requests.at(-1)?.url).not.toContain(capability);
  });

  it("x-api-key and the overrides of the evaluation mode", async () => {
    const capability = await token({ rolloutId: "r3", mode: "eval" });
    const response = await fetch(`${sidecar.url}/v1/messages`, {
      method: "POST",
      headers: { "x-api-key": capability },
      body: JSON.stringify({ ...chat, max_tokens: 9 }),
    });
    expect(response.status).toBe(200);
    expect(engine.requests.at(-1)?.json).toMatchObject({ temperature: 0 });
    await storedCalls("r3", 1);
  });

  it("the header of its own, beside a credential that is not ours", async () => {
    const headers = {
      "x-outrigger-token": await token({ rolloutId: "r10" }),
      authorization: "Bearer sk-own",
    };
    const response = await fetch(`${sidecar.url}/v1/chat/completions`, {
      method: "POST",
      headers,
      body: JSON.stringify(chat),
    });
    expect(response.status).toBe(200);
    await storedCalls("r10", 1);
    const sent = JSON.stringify(engine.requests.at(-1)?.rawHeaders);
    expect(sent).not.toContain("sk-own");
    expect(sent).not.toContain("x-outrigger");
  });

  it.each([
    ["no token", async () => "sk-anything", 401],
    ["an expired one", () => token({ rolloutId: "r4", expiresAtMs: Date.now() - 10_000 }), 401],
    ["one without the scope", () => token({ rolloutId: "r4", scopes: ["event"] }), 403],
    [
      "one of another controller",
      () =>
        signCapability(
          {
            rolloutId: "r4",
            attemptId: "a0",
            scopes: ["call"],
            mode: "train",
            expiresAtMs: Date.now() + 60_000,
          },
          generateTokenKeys().privateKeyPem,
        ),
      401,
    ],
  ])("refuses %s, in the dialect's shape, and asks no engine", async (_name, make, status) => {
    const before = engine.requests.length;
    const error = await client(await make())
      .chat.completions.create(chat)
      .catch((cause: unknown) => cause);
    expect(error).toBeInstanceOf(OpenAI.APIError);
    expect((error as InstanceType<typeof OpenAI.APIError>).status).toBe(status);
    expect(engine.requests.length).toBe(before);
  });

  it("a binding names the rollout of a harness that carries no token", async () => {
    ingest.publishBindings([
      { rolloutId: "r5", attemptId: "a0", sidecarId: "sc1", mode: "train" },
      { rolloutId: "other", attemptId: "a0", sidecarId: "sc2", mode: "train" },
    ]);
    await until(() => sidecar.binding?.rolloutId === "r5");
    await client("sk-anything").chat.completions.create(chat);
    await storedCalls("r5", 1);
  });

  it("Agent Lightning's proxy path, with the rollout's token or a key for all", async () => {
    const path = "/proxy/rollout/r6/attempt/a0/mode/train/openai/v1";
    await client(await token({ rolloutId: "r6" }), path).chat.completions.create(chat);
    await client(await token(), path).chat.completions.create(chat);
    await storedCalls("r6", 2);
    const stranger = client(await token({ rolloutId: "r7" }), path);
    await expect(stranger.chat.completions.create(chat)).rejects.toMatchObject({ status: 403 });
  });

  it.each([
    ["train", { temperature: 0.5, top_p: 1 }],
    ["val", { temperature: 0 }],
  ])("Agent Lightning's proxy path streams; mode %s sets the sampling", async (mode, sampling) => {
    const path = `/proxy/rollout/r6-${mode}/attempt/a0/mode/${mode}/openai/v1`;
    const openai = client(await token(), path);
    const stream = await openai.chat.completions.create({ ...chat, stream: true });
    const chunks: OpenAI.ChatCompletionChunk[] = [];
    for await (const chunk of stream) chunks.push(chunk);
    expect(chunks.length).toBeGreaterThan(2);
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe("stop");
    expect(engine.requests.at(-1)?.json).toMatchObject({ ...sampling, stream: true });
    const [call] = await storedCalls(`r6-${mode}`, 1);
    expect(call).toMatchObject({ complete: true, delivered: true });
  });

  it("a call before an engine's first canary is done waits for it, and is trained on", async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const next = await startScriptedEngine(vllmScript({ beforeAnswer: held }));
    ingest.publishPolicy({ model: "toy", version: 6, endpoints: [{ url: `${next.url}/v1` }] });
    await until(() => next.requests.length > 0);
    const asked = client(await token({ rolloutId: "r9" })).chat.completions.create(chat);
    const metrics = async () => (await fetch(`${sidecar.url}/metrics`)).text();
    while (!(await metrics()).includes("outrigger_sidecar_open_calls 1"));
    release();
    await asked;
    const [call] = await storedCalls("r9", 1);
    expect(call).toMatchObject({ complete: true, policyVersion: 6 });
    await next.close();
  });

  it("a pause drains and holds; a policy published meanwhile serves what was held", async () => {
    const result = await ingest.pause({ reason: "update", holdLimitMs: 30_000, drainLimitMs: 0 });
    expect(result.drained).toBe(true);
    const before = engine.requests.length;
    const held = client(await token({ rolloutId: "r8" })).chat.completions.create(chat);
    await until(() => sidecar.gateStatus().held === 1);
    expect(engine.requests.length).toBe(before);
    ingest.publishPolicy({ model: "toy", version: 6, endpoints: [{ url: `${engine.url}/v1` }] });
    ingest.resume();
    await held;
    const [call] = await storedCalls("r8", 1);
    expect(call?.policyVersion).toBe(6);
  });
});
