import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { assembleAttempt } from "../assembly/assemble-attempt.ts";
import type { CapturedCall } from "../assembly/captured-call.ts";
import { encodeSample } from "./encode-sample.ts";
import { parseCallLine } from "./parse-call-line.ts";

const json = {
  callId: "c1",
  rolloutId: "r",
  attemptId: "a",
  requestId: "q",
  choiceIndex: 0,
  promptIds: [1, 2],
  responseIds: [3, 4],
  logprobs: [-0.1, -2.5],
  policyVersion: 7,
  startedAt: 1,
  finishedAt: 2,
  delivered: true,
  complete: true,
  finishReason: "stop",
  usage: { promptTokens: 2, completionTokens: 2 },
};

function parse(fields: object = {}): CapturedCall {
  return parseCallLine(JSON.stringify({ ...json, ...fields }), 12) as CapturedCall;
}

describe("parseCallLine", () => {
  it("reads a call", () => {
    expect(parse()).toEqual({
      ...json,
      promptIds: Int32Array.of(1, 2),
      responseIds: Int32Array.of(3, 4),
      logprobs: Float64Array.of(-0.1, -2.5),
    });
  });

  it("reads what is optional, and takes null for absent", () => {
    const policyVersions = [{ version: 8, start: 1, end: 2 }];
    const given = { policyVersions, incompleteReason: "x", sideCall: true, retryOf: "q0" };
    expect(parse(given)).toMatchObject(given);
    const absent = { policyVersions: null, incompleteReason: null, sideCall: null, retryOf: null };
    expect(parse(absent)).toEqual(parse());
  });

  it("passes over lines that are no calls by their type", () => {
    expect(parse({ type: "call" })).toEqual(parse());
    for (const type of ["event", "request"]) {
      expect(parseCallLine(JSON.stringify({ type }), 1)).toBeUndefined();
    }
  });

  it("keeps missing ids, logprobs and usage as null", () => {
    const missing = { promptIds: null, responseIds: null, logprobs: null, usage: null };
    expect(parse({ ...missing, finishReason: null })).toMatchObject({
      ...missing,
      finishReason: null,
    });
  });

  it("reads null and Python's bare NaN in logprobs as not a number, also beside odd strings", () => {
    expect(parse({ logprobs: [null, -1] }).logprobs).toEqual(Float64Array.of(Number.NaN, -1));
    const text = JSON.stringify({ ...json, callId: 'NaN "-Infinity' }).replace("-2.5", "-Infinity");
    const call = parseCallLine(text.replace("-0.1", "NaN"), 1) as CapturedCall;
    expect(call.callId).toBe('NaN "-Infinity');
    expect(call.logprobs).toEqual(Float64Array.of(Number.NaN, Number.NaN));
  });

  it.each([
    ["[]", "line 12: a call is a JSON object"],
    ["{", "line 12: not JSON"],
    ["null", "line 12: a call is a JSON object, not null"],
  ])("refuses %s", (text, message) => {
    expect(() => parseCallLine(text, 12)).toThrowError(message);
  });

  it.each([
    [{ callId: undefined }, "field callId is missing"],
    [{ callId: 5 }, "callId must be a string, not 5"],
    [{ rolloutId: "" }, "rolloutId must not be empty"],
    [{ promptIds: undefined }, "field promptIds is missing (null where it is not known)"],
    [{ promptIds: "1 2" }, 'promptIds must be an array or null, not "1 2"'],
    [{ promptIds: [1, 2.5] }, "promptIds[1] must be a token id, not 2.5"],
    [{ responseIds: [-3] }, "responseIds[0] must be a token id, not -3"],
    [{ responseIds: [2 ** 31] }, "responseIds[0] must be a token id"],
    [{ logprobs: ["a"] }, 'logprobs[0] must be a number, not "a"'],
    [{ choiceIndex: 0.5 }, "choiceIndex must be an integer from 0 on"],
    [{ startedAt: "now" }, 'startedAt must be a number, not "now"'],
    [{ delivered: 1 }, "delivered must be a boolean, not 1"],
    [{ usage: 3 }, "usage must be an object or null, not 3"],
    [{ usage: { promptTokens: 1 } }, "usage: field completionTokens is missing"],
    [{ policyVersions: {} }, "policyVersions must be an array"],
    [{ policyVersions: [{ version: 1, start: 0 }] }, "policyVersions[0]: field end is missing"],
    [{ sideCall: "yes" }, 'sideCall must be a boolean, not "yes"'],
  ])("says what is wrong and on which line: %j", (fields, message) => {
    expect(() => parse(fields)).toThrowError(`line 12: ${message}`);
  });

  it("never fails otherwise than with its own error", () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
        try {
          parseCallLine(text, 1);
        } catch (error) {
          expect(error).toMatchObject({ reason: "calls-line-invalid", origin: "user" });
        }
      }),
    );
  });
});

describe("encodeSample", () => {
  it("writes full-length arrays, null where nothing was sampled, and logprobs in full", () => {
    const calls = [parse({ logprobs: [-0.1, -0.10000000149011612] })];
    const [sample] = assembleAttempt(calls).samples;
    expect(JSON.parse(encodeSample(sample as NonNullable<typeof sample>))).toEqual({
      rolloutId: "r",
      attemptId: "a",
      tokenIds: [1, 2, 3, 4],
      lossMask: [0, 0, 1, 1],
      samplingLogprobs: [null, null, -0.1, -0.10000000149011612],
      policyVersions: [null, null, 7, 7],
      callIds: ["c1"],
    });
  });
});
