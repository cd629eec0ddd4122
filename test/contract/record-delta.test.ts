import { create } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { encodeAll, wireBytes, wireTrajectory } from "../../bench/wire-trajectory.ts";
import { expandCalls } from "../../controller/store/expand-calls.ts";
import { expandText } from "../../controller/store/expand-text.ts";
import type { Call } from "../../core/call.ts";
import {
  type CallRecord,
  PackedIdsSchema,
  type TextBody,
  TokenSequenceSchema,
} from "../../proto/gen/outrigger/v1/record_pb.ts";
import type { FinishedCall } from "../../sidecar/capture/finished-call.ts";
import { createRecordEncoder } from "../../sidecar/uplink/record-encoder.ts";
import { choiceOf, finishedCall, readCall, receivedCall } from "./record-path-fixtures.ts";

/** What the core must see of a finished call, said without the encoder. */
function expectedCalls(call: FinishedCall): Call[] {
  return call.choices.map((choice) => ({
    callId: choice.callId,
    rolloutId: call.rolloutId,
    attemptId: call.attemptId,
    requestId: call.requestId,
    choiceIndex: choice.index,
    promptIds: call.promptIds,
    responseIds: choice.responseIds,
    logprobs: choice.logprobs,
    policyVersion: call.policyVersion,
    ...(choice.policyVersions.length > 0 && { policyVersions: choice.policyVersions }),
    startedAt: call.timing.receivedAtMs,
    finishedAt: call.timing.finishedAtMs,
    delivered: call.delivered,
    complete: choice.complete,
    ...(!choice.complete && { incompleteReason: choice.incompleteReason }),
    finishReason: choice.finishReason,
    usage: call.usage && {
      promptTokens: call.usage.promptTokens,
      completionTokens: call.usage.completionTokens,
    },
    ...(call.sideCallClass !== undefined && { sideCall: true }),
    ...((call.replayOf ?? call.retryOf) !== undefined && {
      retryOf: call.replayOf ?? call.retryOf,
    }),
  }));
}

/** Encodes in order, with a new encoder (a restart) before each call named in `restarts`. */
function transport(calls: readonly FinishedCall[], restarts: ReadonlySet<number>): CallRecord[] {
  let encoder = createRecordEncoder({ maxContextTokens: 200 });
  return calls.map((call, i) => {
    if (restarts.has(i)) encoder = createRecordEncoder({ maxContextTokens: 200 });
    const { record, remember } = encoder.encode(call, {});
    remember();
    return receivedCall(i + 1, record);
  });
}

function byAttempt<T extends { readonly rolloutId: string; readonly attemptId: string }>(
  items: readonly T[],
): Map<string, T[]> {
  const attempts = new Map<string, T[]>();
  for (const item of items) {
    const key = `${item.rolloutId}/${item.attemptId}`;
    attempts.set(key, [...(attempts.get(key) ?? []), item]);
  }
  return attempts;
}

/** As the store reads them: one attempt at a time, in order of arrival. */
function expandByAttempt(records: readonly CallRecord[]): Map<string, Call[]> {
  return new Map(
    [...byAttempt(records)].map(([key, of]) => [
      key,
      expandCalls(of).flatMap((request) => request.calls),
    ]),
  );
}

const token = fc.oneof(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 0, max: 2 ** 31 - 1 }));
const tokens = fc.array(token, { maxLength: 12 });
const optionalText = (name: string) => fc.option(fc.constant(name), { nil: undefined });

interface Step {
  readonly rollout: number;
  readonly attempt: number;
  /** Index of an earlier call that the prompt goes on from. */
  readonly from: number;
  readonly cut: number;
  readonly added: number[];
  readonly responses: (number[] | null)[];
  readonly model: string;
  readonly options: { readonly [name: string]: unknown };
}

const step: fc.Arbitrary<Step> = fc.record({
  rollout: fc.integer({ min: 0, max: 2 }),
  attempt: fc.integer({ min: 0, max: 1 }),
  from: fc.nat(),
  cut: fc.integer({ min: 0, max: 3 }),
  added: tokens,
  responses: fc.array(fc.option(tokens), { maxLength: 3 }),
  model: fc.constantFrom("policy", "other", ""),
  options: fc.record({
    delivered: fc.boolean(),
    usage: fc.constantFrom(null, { promptTokens: 1, completionTokens: 2, cachedTokens: 1 }),
    retryOf: optionalText("q-retry"),
    replayOf: optionalText("q-replay"),
    sideCallClass: optionalText("title"),
    sessionId: optionalText("s"),
    engine: optionalText("http://engine/v1"),
    promptIds: fc.constantFrom("keep", null),
  }),
});

function callsOf(steps: readonly Step[]): FinishedCall[] {
  const calls: FinishedCall[] = [];
  steps.forEach((s, i) => {
    const earlier = calls.length === 0 ? undefined : calls[s.from % calls.length];
    const history = [...(earlier?.promptIds ?? []), ...(earlier?.choices[0]?.responseIds ?? [])];
    const prompt = [...history.slice(0, Math.max(0, history.length - s.cut)), ...s.added];
    const requestId = `q${i}`;
    const { promptIds, ...options } = Object.fromEntries(
      Object.entries(s.options).filter(([, value]) => value !== undefined),
    );
    calls.push(
      finishedCall(requestId, promptIds === null ? null : prompt, [], {
        rolloutId: `r${s.rollout}`,
        attemptId: `r${s.rollout}-${s.attempt}`,
        model: s.model,
        choices: s.responses.map((ids, index) =>
          choiceOf(requestId, ids, { index, ...(index === 1 && { callId: `own-${i}` }) }),
        ),
        ...options,
      }),
    );
  });
  return calls;
}

describe("delta-encoded records", () => {
  it("decode(encode(x)) = x for any order of calls, interleaving of rollouts, and restarts", () => {
    fc.assert(
      fc.property(
        fc.array(step, { maxLength: 15 }),
        fc.array(fc.nat({ max: 14 }), { maxLength: 3 }),
        (steps, restarts) => {
          const calls = callsOf(steps);
          const expanded = expandByAttempt(transport(calls, new Set(restarts)));
          for (const [key, of] of byAttempt(calls))
            expect(expanded.get(key)).toEqual(of.flatMap(expectedCalls));
        },
      ),
      { numRuns: 300 },
    );
  });

  it("gives settings, sampling and stop reasons back, inherited or not", () => {
    const calls = [
      finishedCall("q0", [1, 2], [3], { model: "m", engine: "e1", sessionId: "s" }),
      finishedCall("q1", [1, 2, 3], [4], { model: "m", engine: "e2", sessionId: "s" }),
      finishedCall("q2", [1, 2, 3, 4], [5], { model: "m", samplingJson: "" }),
    ];
    const records = transport(calls, new Set());
    expect(records.map((r) => r.inherit)).toEqual([false, true, false]);
    expect(records[1]?.model).toBe("");
    expect(expandCalls(records).map((r) => r.settings)).toEqual([
      { model: "m", engine: "e1", sessionId: "s", samplingJson: '{"temperature":1}' },
      { model: "m", engine: "e2", sessionId: "s", samplingJson: '{"temperature":1}' },
      { model: "m", engine: "", sessionId: "", samplingJson: "" },
    ]);
  });

  it("keeps every bit of logprobs: NaN, infinities, negative zero, denormals", () => {
    const logprobs = Float32Array.of(Number.NaN, -Infinity, Infinity, -0, 1.4e-45, -9999, -0.1);
    const call = finishedCall("q0", [1], Array.from({ length: 7 }), {
      choices: [choiceOf("q0", [1, 2, 3, 4, 5, 6, 7], { logprobs })],
    });
    const [out] = expandCalls(transport([call], new Set()))[0]?.calls ?? [];
    expect(
      new Uint32Array(out?.logprobs?.buffer as ArrayBuffer, out?.logprobs?.byteOffset, 7),
    ).toEqual(new Uint32Array(logprobs.buffer));
  });

  it("sends of a growing conversation only what is new", () => {
    let context: number[] = Array.from({ length: 500 }, (_, i) => i * 7);
    const calls: FinishedCall[] = [];
    for (let turn = 0; turn < 10; turn += 1) {
      const response = [turn, turn + 1, turn + 2];
      calls.push(finishedCall(`q${turn}`, context, response));
      context = [...context, ...response, 9, 9];
    }
    const records = transport(calls, new Set()).slice(1);
    // The encoder of `transport` is too small for these contexts on purpose.
    expect(records.every((r) => r.prompt?.baseRequestId === "")).toBe(true);
    const encoder = createRecordEncoder();
    const deltas = calls.map((call) => {
      const { record, remember } = encoder.encode(call, {});
      remember();
      return record;
    });
    expect(deltas.slice(1).map((r) => r.prompt?.newIds?.count)).toEqual(Array(9).fill(2));
    expect(deltas.slice(1).map((r) => r.prompt?.baseRequestId)).toEqual(
      calls.slice(0, -1).map((c) => c.requestId),
    );
  });

  it("never refers to a record that was not kept, nor to one before `forget`", () => {
    const encoder = createRecordEncoder();
    const first = encoder.encode(finishedCall("q0", [1, 2, 3], [4]), {});
    const second = encoder.encode(finishedCall("q1", [1, 2, 3, 4], [5]), {});
    expect(second.record.prompt?.baseRequestId).toBe("");
    first.remember();
    expect(encoder.encode(finishedCall("q2", [1, 2], []), {}).record.prompt?.baseRequestId).toBe(
      "q0",
    );
    encoder.forget();
    expect(encoder.encode(finishedCall("q3", [1, 2], []), {}).record.prompt?.baseRequestId).toBe(
      "",
    );
  });
});

describe("a 50-turn trajectory that ends at 32,768 tokens costs on the wire, per token of it", () => {
  it.each([
    ["text", "random", 0.4, 3.3],
    ["text", "random", 0.1, 2.4],
    // The worst case: nothing in ids and logprobs can be guessed.
    ["uniform", "random", 0.4, 3.85],
    ["uniform", "engine", 0.4, 3.85],
  ] as const)("%s ids, %s logprobs, %d sampled: at most %d bytes", (ids, logprobs, share, most) => {
    const calls = wireTrajectory({
      turns: 50,
      finalTokens: 32_768,
      sampledShare: share,
      ids,
      logprobs,
    });
    const records = encodeAll(calls);
    expect(wireBytes(records) / 32_768).toBeLessThanOrEqual(most);
    const last = expandCalls(records.map(readCall)).at(-1)?.calls[0];
    expect(last?.promptIds).toEqual(calls.at(-1)?.promptIds);
    expect(last?.logprobs).toEqual(calls.at(-1)?.choices[0]?.logprobs);
  });
});

describe("records that cannot be expanded", () => {
  const records = transport(
    [
      finishedCall("q0", [1, 2], [3]),
      finishedCall("q1", [1, 2, 3], [4]),
      finishedCall("q2", [1, 2, 3, 4], [5]),
    ],
    new Set(),
  );
  const reasons = (of: readonly CallRecord[]): unknown[] =>
    expandCalls(of).flatMap((r) => r.calls.map((c) => c.incompleteReason));

  it("are incomplete with a reason, and so is what refers to them", () => {
    expect(reasons(records)).toEqual([undefined, undefined, undefined]);
    expect(reasons(records.slice(1))).toEqual(["base-missing", "base-missing"]);
  });

  it.each([
    ["more shared tokens than the base has", { baseRequestId: "q0", sharedLength: 99 }],
    ["a choice that the base has not", { baseRequestId: "q0", sharedLength: 1, baseChoice: 7 }],
    [
      "bytes that are no deflate",
      {
        newIds: create(PackedIdsSchema, {
          count: 3,
          deflatedPlanes: true,
          data: Uint8Array.of(255),
        }),
      },
    ],
    ["too few bytes", { newIds: create(PackedIdsSchema, { count: 3, width: 18 }) }],
    ["no ids at all", { newIds: undefined }],
  ])("%s", (_, change) => {
    const prompt = create(TokenSequenceSchema, { newIds: create(PackedIdsSchema) });
    const forged = { ...(records[1] as CallRecord), prompt: Object.assign(prompt, change) };
    expect(reasons([records[0] as CallRecord, forged])).toEqual([undefined, "record-corrupt"]);
  });
});

describe("text", () => {
  it("comes back as it was, for any texts that share their ends or not", () => {
    const part = fc.constantFrom("", "ab", "\u00fcber", "[1,2]", "x".repeat(300));
    const body = fc
      .array(part, { maxLength: 6 })
      .map((parts) => new TextEncoder().encode(parts.join("")));
    fc.assert(
      fc.property(
        fc.array(fc.tuple(body, fc.option(body, { nil: undefined })), { maxLength: 8 }),
        (texts) => {
          const encoder = createRecordEncoder({ maxTextBytes: 1000 });
          const bodies = new Map<string, TextBody>();
          texts.forEach(([request, response], i) => {
            const { record, remember } = encoder.encode(finishedCall(`q${i}`, null, null), {
              request,
              ...(response !== undefined && { response }),
            });
            remember();
            bodies.set(`q${i}`, record.requestText as TextBody);
            const chain: TextBody[] = [];
            for (let b = bodies.get(`q${i}`); b !== undefined; b = bodies.get(b.baseRequestId))
              chain.unshift(b);
            expect(expandText(chain)).toBe(new TextDecoder().decode(request));
            expect(
              record.responseText === undefined ? undefined : expandText([record.responseText]),
            ).toBe(response === undefined ? undefined : new TextDecoder().decode(response));
          });
        },
      ),
      { numRuns: 200 },
    );
  });

  it("sends of a growing request only the new messages, with the tools after them", () => {
    const encoder = createRecordEncoder();
    const tools = "t".repeat(2000);
    const sizes: number[] = [];
    let messages = "";
    for (let turn = 0; turn < 5; turn += 1) {
      messages += `{"content":"message ${turn} ${"m".repeat(50)}"},`;
      const request = new TextEncoder().encode(`{"messages":[${messages}],"tools":"${tools}"}`);
      const { record, remember } = encoder.encode(finishedCall(`q${turn}`, null, null), {
        request,
      });
      remember();
      sizes.push(record.requestText?.rest.length ?? 0);
    }
    expect(Math.max(...sizes.slice(1))).toBeLessThan(100);
  });
});
