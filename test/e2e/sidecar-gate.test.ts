import OpenAI from "openai";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;

beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url], { keepAliveMs: 100 });
});
afterEach(async () => {
  await proxied.close();
  await engine.close();
});

const pause = {
  commandId: "p",
  paused: true,
  reason: "update",
  holdLimitMs: 60_000,
  drainLimitMs: 0,
};
const resume = { ...pause, commandId: "r", paused: false };
const chat = { model: "toy", messages: [{ role: "user" as const, content: "hi" }] };
const client = () => new OpenAI({ baseURL: `${proxied.url}/v1`, apiKey: "x", maxRetries: 0 });
const sampled = () => engine.requests.filter((request) => request.method === "POST").length;

describe("invariant 9: during a weight update no new call reaches the engine, and none is failed", () => {
  it("holds calls, releases them to the new version, and says so in the records", async () => {
    const before = sampled();
    proxied.sidecar.applyGate(pause);
    const held = [1, 2, 3].map(() => client().chat.completions.create(chat));
    await until(() => proxied.sidecar.gateStatus().held === 3);
    expect(sampled()).toBe(before);
    expect(proxied.sidecar.gateStatus()).toMatchObject({ drained: true, inFlight: 0 });
    proxied.sidecar.updatePolicy({ version: 7, endpoints: [{ url: `${engine.url}/v1` }] });
    proxied.sidecar.applyGate(resume);
    const answers = await Promise.all(held);
    expect(answers).toHaveLength(3);
    for (const call of await proxied.recorded(3)) {
      expect(call.policyVersion).toBe(7);
      expect(call.choices[0]?.policyVersions).toMatchObject([{ version: 7, start: 0 }]);
      expect(call.timing.heldMs).toBeGreaterThan(0);
    }
  });

  it("after an update no call goes to an endpoint of before", async () => {
    const next = await startScriptedEngine(vllmScript());
    proxied.sidecar.applyGate(pause);
    const held = client().chat.completions.create(chat);
    await until(() => proxied.sidecar.gateStatus().held === 1);
    const before = sampled();
    proxied.sidecar.updatePolicy({ version: 1, endpoints: [{ url: `${next.url}/v1` }] });
    proxied.sidecar.applyGate(resume);
    await held;
    expect(sampled()).toBe(before);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ engine: `${next.url}/v1`, policyVersion: 1 });
    await next.close();
  });

  it("waits for a canary no longer than the drain limit; it is asked again after the pause", async () => {
    const before = sampled();
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => undefined) }));
    proxied.sidecar.updatePolicy({ version: 2, endpoints: [{ url: `${engine.url}/v1` }] });
    await until(() => sampled() > before);
    proxied.sidecar.applyGate({ ...pause, drainLimitMs: 20 });
    await until(() => proxied.sidecar.gateStatus().drained);
    engine.setScript(vllmScript());
    const asked = sampled();
    proxied.sidecar.applyGate(resume);
    await until(() => sampled() > asked);
  });

  it("reports drained only when the last call has left the engine", async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const before = sampled();
    engine.setScript(vllmScript({ beforeAnswer: held }));
    const running = client().chat.completions.create(chat);
    await until(() => sampled() > before);
    proxied.sidecar.applyGate(pause);
    expect(proxied.sidecar.gateStatus()).toMatchObject({ drained: false, inFlight: 1 });
    release();
    await running;
    await until(() => proxied.sidecar.gateStatus().drained);
  });

  it("the span reports of the engine win over the version at sending", async () => {
    const policyVersions = [
      { version: 3, start: 0, end: 2 },
      { version: 4, start: 2, end: 6 },
    ];
    engine.setScript(vllmScript({ answer: () => ({ content: "a b c" }), policyVersions }));
    const answer = await client().chat.completions.create(chat);
    expect(answer.choices[0]).not.toHaveProperty("policy_versions");
    const [call] = await proxied.recorded(1);
    const [choice] = call?.choices ?? [];
    expect(choice?.policyVersions).toEqual(policyVersions);
  });
});

describe("limits of a hold", () => {
  it("answers 429 with Retry-After at the hold limit", async () => {
    proxied.sidecar.applyGate({ ...pause, holdLimitMs: 50 });
    const error = await client()
      .chat.completions.create(chat)
      .catch((cause: unknown) => cause);
    expect(error).toBeInstanceOf(OpenAI.RateLimitError);
    const { headers } = error as InstanceType<typeof OpenAI.APIError>;
    expect(Number(headers?.get("retry-after"))).toBeGreaterThan(0);
    expect(proxied.calls).toEqual([]);
  });

  it("a harness that hangs up while it is held is forgotten", async () => {
    proxied.sidecar.applyGate(pause);
    const gone = new AbortController();
    const held = client().chat.completions.create(chat, { signal: gone.signal });
    await until(() => proxied.sidecar.gateStatus().held === 1);
    gone.abort();
    await expect(held).rejects.toThrow();
    await until(() => proxied.sidecar.gateStatus().held === 0);
  });

  it.each(["responses", "messages"])("keeps a held %s stream alive", async (path) => {
    proxied.sidecar.applyGate(pause);
    const body = {
      model: "toy",
      stream: true,
      max_tokens: 9,
      input: "hi",
      messages: chat.messages,
    };
    const response = await fetch(`${proxied.url}/v1/${path}`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    const first = Buffer.from((await reader.read()).value ?? []).toString();
    expect(first).toMatch(/^event: /);
    proxied.sidecar.applyGate(resume);
    let rest = first;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += Buffer.from(value).toString();
    }
    expect(rest).toMatch(path === "messages" ? /event: message_stop/ : /response\.completed/);
    const starts = rest.match(/event: (message_start|response\.created)/g);
    expect(starts).toHaveLength(1);
  });

  it("aborts and re-issues what has sent nothing when the drain limit passes", async () => {
    const before = sampled();
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => {}) }));
    const call = client().chat.completions.create(chat);
    await until(() => sampled() > before);
    const stuck = engine.requests.at(-1);
    proxied.sidecar.applyGate({ ...pause, drainLimitMs: 20 });
    await stuck?.aborted;
    await until(() => proxied.sidecar.gateStatus().drained);
    engine.setScript(vllmScript());
    proxied.sidecar.applyGate(resume);
    expect((await call).choices).toHaveLength(1);
    expect(sampled() - before).toBe(2);
    const records = await proxied.recorded(1);
    expect(records).toHaveLength(1);
    expect(records[0]).toMatchObject({ delivered: true });
  });

  it("issues a call anew as often as it is paused, and never takes that for a lost engine", async () => {
    engine.setScript(vllmScript({ beforeAnswer: new Promise(() => undefined) }));
    const before = sampled();
    const call = client().chat.completions.create(chat);
    for (let turn = 1; turn <= 10; turn += 1) {
      await until(() => sampled() === before + turn);
      proxied.sidecar.applyGate({ ...pause, drainLimitMs: 1 });
      await until(() => proxied.sidecar.gateStatus().held === 1);
      if (turn === 10) engine.setScript(vllmScript());
      proxied.sidecar.applyGate(resume);
    }
    expect((await call).choices).toHaveLength(1);
    expect(sampled()).toBe(before + 11);
  });

  it("lets what has begun to answer go on beyond the drain limit", async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const before = sampled();
    engine.setScript(vllmScript({ betweenEvents: (index) => (index === 2 ? held : undefined) }));
    const stream = await client().chat.completions.create({ ...chat, stream: true });
    const chunks: unknown[] = [];
    for await (const chunk of stream) {
      chunks.push(chunk);
      if (chunks.length !== 2) continue;
      proxied.sidecar.applyGate({ ...pause, drainLimitMs: 1 });
      setTimeout(release, 30);
    }
    expect(sampled() - before).toBe(1);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true });
  });
});
