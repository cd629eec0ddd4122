import { describe, expect, it } from "vitest";
import { decideRetry, type EarlierCall } from "./decide-retry.ts";
import { RecentCalls } from "./recent-calls.ts";

const body = Buffer.from("same");
const call = (requestId: string, state: EarlierCall["state"], bytes = body): EarlierCall => ({
  requestId,
  body: bytes,
  state,
});
const inFlight = { kind: "in-flight", canJoin: true } as const;
const ended = (endedAtMs: number) => ({ kind: "ended", endedAtMs }) as const;
const facts = { body: Buffer.from("same"), isMarkedRetry: true, nowMs: 1_000, windowMs: 500 };

describe("whether a request repeats an earlier one", () => {
  it.each<[string, EarlierCall[], Partial<typeof facts>, string, string | undefined]>([
    ["no earlier call", [], {}, "new", undefined],
    ["no mark", [call("a", inFlight)], { isMarkedRetry: false }, "new", undefined],
    ["in flight", [call("a", inFlight)], {}, "join", "a"],
    [
      "in flight, too long to join",
      [call("a", { kind: "in-flight", canJoin: false })],
      {},
      "again",
      "a",
    ],
    [
      "undelivered and kept",
      [call("a", { kind: "undelivered", canReplay: true, endedAtMs: 900 })],
      {},
      "replay",
      "a",
    ],
    [
      "undelivered, not kept",
      [call("a", { kind: "undelivered", canReplay: false, endedAtMs: 900 })],
      {},
      "again",
      "a",
    ],
    ["delivered or failed", [call("a", ended(900))], {}, "again", "a"],
    ["too long ago", [call("a", ended(499))], {}, "new", undefined],
    ["another body", [call("a", inFlight, Buffer.from("other"))], {}, "new", undefined],
    ["the latest of several", [call("a", inFlight), call("b", inFlight)], {}, "join", "b"],
  ])("%s", (_name, calls, change, kind, requestId) => {
    const decision = decideRetry(calls, { ...facts, ...change });
    expect(decision.kind).toBe(kind);
    if (decision.kind !== "new") expect(decision.earlier.requestId).toBe(requestId);
  });
});

describe("what is remembered", () => {
  it("is bounded by bytes, count and age", () => {
    let now = 0;
    const recent = new RecentCalls({ windowMs: 100, maxBytes: 1_000, nowMs: () => now });
    for (let index = 0; index < 50; index += 1) {
      const bytes = Buffer.alloc(100, index);
      recent.add(`key${index % 20}`, call(`c${index}`, ended(now), bytes))(0);
    }
    expect(recent.size).toBeLessThanOrEqual(10);
    for (let index = 0; index < 10; index += 1) recent.add("one", call(`d${index}`, ended(now)))(0);
    expect(recent.size).toBeLessThanOrEqual(14);
    now = 1_000;
    recent.add("late", call("e", ended(now)))(0);
    expect(recent.size).toBe(1);
  });

  it("is bounded in number however small the calls are", () => {
    const recent = new RecentCalls({ windowMs: 100, maxBytes: 1e9, nowMs: () => 0 });
    for (let index = 0; index < 5_000; index += 1) {
      recent.add(`key${index}`, call(`c${index}`, ended(0)))(0);
    }
    expect(recent.size).toBe(1_024);
  });

  it("finds a call under its own key only, until it is forgotten", () => {
    const recent = new RecentCalls({ windowMs: 100, maxBytes: 1_000, nowMs: () => 0 });
    const known = call("a", inFlight);
    recent.add("mine", known);
    expect(recent.decide("mine", body, true)).toMatchObject({ kind: "join" });
    expect(recent.decide("other", body, true)).toEqual({ kind: "new" });
    recent.forget("mine", known);
    expect(recent.decide("mine", body, true)).toEqual({ kind: "new" });
  });
});
