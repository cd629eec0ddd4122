import { request as httpRequest } from "node:http";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  jsonSteps,
  type ScriptedEngine,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;

beforeEach(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
});
afterEach(async () => {
  await proxied.close();
  await engine.close();
});

const sampled = () => engine.requests.filter((request) => request.method === "POST").length;

interface Sent {
  readonly answer: Promise<string>;
  /** The response head has come. */
  readonly begun: Promise<void>;
  hangUp(): void;
}

function send(
  retryCount: number,
  options: { text?: string; stream?: boolean; url?: string; reads?: boolean } = {},
): Sent {
  const { text = "hi", stream = true, url = proxied.url, reads = true } = options;
  const messages = [{ role: "user", content: text }];
  const outgoing = httpRequest(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "x-stainless-retry-count": String(retryCount) },
  });
  let begin = (): void => undefined;
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const answer = new Promise<string>((resolve, reject) => {
    outgoing.on("error", reject);
    outgoing.on("response", (response) => {
      begin();
      response.on("error", reject);
      if (!reads) return;
      const parts: Buffer[] = [];
      response.on("data", (part: Buffer) => parts.push(part));
      response.on("end", () => resolve(Buffer.concat(parts).toString()));
    });
  });
  answer.catch(() => undefined);
  outgoing.end(JSON.stringify({ model: "toy", stream, messages }));
  return { answer, begun, hangUp: () => outgoing.destroy() };
}

function gateScript(): { release: () => void } {
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  engine.setScript(vllmScript({ betweenEvents: (index) => (index === 3 ? held : undefined) }));
  return { release };
}

describe("invariant 6: retries of a harness are not sampled twice", () => {
  it("a marked retry joins the call in flight and gets the same bytes", async () => {
    const { release } = gateScript();
    const before = sampled();
    const first = send(0);
    await until(() => sampled() === before + 1);
    const second = send(1);
    await second.begun;
    release();
    const answers = await Promise.all([first.answer, second.answer]);
    expect(answers[1]).toBe(answers[0]);
    expect(sampled()).toBe(before + 1);
    const [one, two] = await proxied.recorded(2);
    const [original, joined] = one?.replayOf === undefined ? [one, two] : [two, one];
    expect(original).toMatchObject({ delivered: true });
    expect(joined).toMatchObject({
      delivered: true,
      replayOf: original?.requestId,
      retryOf: original?.requestId,
    });
    expect(joined?.choices[0]?.responseIds).toEqual(original?.choices[0]?.responseIds);
    expect(joined?.choices[0]?.callId).not.toBe(original?.choices[0]?.callId);
  });

  it("the call goes on for the retry when the first connection is gone", async () => {
    const { release } = gateScript();
    const before = sampled();
    const first = send(0);
    await until(() => sampled() === before + 1);
    const second = send(1);
    await second.begun;
    first.hangUp();
    // Later requests are answered after the sidecar has heard of the end of the first.
    for (let turn = 0; turn < 5; turn += 1) await fetch(`${proxied.url}/healthz`);
    release();
    expect(await second.answer).toContain("[DONE]");
    expect(sampled()).toBe(before + 1);
    const records = await proxied.recorded(2);
    expect(records.filter((call) => call.delivered)).toHaveLength(1);
  });

  it("equal requests without a mark are each sampled", async () => {
    const before = sampled();
    await Promise.all([send(0).answer, send(0).answer, send(0).answer]);
    expect(sampled()).toBe(before + 3);
    const calls = await proxied.recorded(3);
    expect(calls.every((call) => call.retryOf === undefined && call.replayOf === undefined)).toBe(
      true,
    );
  });

  it("a marked retry of an aborted call is sampled again and says so", async () => {
    const { release } = gateScript();
    const before = sampled();
    const first = send(0);
    await until(() => sampled() === before + 1);
    first.hangUp();
    const [aborted] = await proxied.recorded(1);
    release();
    engine.setScript(vllmScript());
    await send(1).answer;
    expect(sampled()).toBe(before + 2);
    const [, again] = await proxied.recorded(2);
    expect(again).toMatchObject({ retryOf: aborted?.requestId, delivered: true });
    expect(again?.replayOf).toBeUndefined();
  });

  it("a marked retry with another body is another call", async () => {
    const { release } = gateScript();
    const before = sampled();
    const first = send(0, { text: "one" });
    await until(() => sampled() === before + 1);
    const second = send(1, { text: "two" });
    await until(() => sampled() === before + 2);
    release();
    await Promise.all([first.answer, second.answer]);
    for (const call of await proxied.recorded(2)) expect(call.retryOf).toBeUndefined();
  });

  it("a whole answer that the harness never got is replayed to its retry, once", async () => {
    const large = await startTestSidecar([engine.url], {
      limits: { maxReplayBytes: 32_000_000, maxRecentBytes: 64_000_000 },
    });
    const message = { role: "assistant", content: "x".repeat(12_000_000) };
    const choices = [{ index: 0, message, finish_reason: "stop" }];
    engine.setScript(() => jsonSteps(200, { id: "big", choices }));
    const before = sampled();
    const options = { stream: false, url: large.url };
    const first = send(0, { ...options, reads: false });
    await first.begun;
    first.hangUp();
    const [lost] = await large.recorded(1);
    expect(lost).toMatchObject({ delivered: false });
    const replayed = await send(1, options).answer;
    expect(replayed.length).toBeGreaterThan(12_000_000);
    expect(sampled()).toBe(before + 1);
    const [, record] = await large.recorded(2);
    expect(record).toMatchObject({ delivered: true, replayOf: lost?.requestId });
    await send(2, options).answer;
    expect(sampled()).toBe(before + 2);
    await large.close();
  });

  it("switched off, every request is sampled", async () => {
    const plain = await startTestSidecar([engine.url], { retries: { deduplicate: false } });
    const { release } = gateScript();
    const before = sampled();
    const both = [send(0, { url: plain.url }), send(1, { url: plain.url })];
    await until(() => sampled() === before + 2);
    release();
    await Promise.all(both.map((sent) => sent.answer));
    await plain.close();
  });
});
