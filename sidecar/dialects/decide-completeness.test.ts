import { describe, expect, it } from "vitest";
import { type CompletenessFacts, decideCompleteness } from "./decide-completeness.ts";

const whole: CompletenessFacts = {
  promptIds: [1, 2],
  responseIds: [3, 4],
  logprobs: [-0.5, 0],
  finishReason: "stop",
  policyVersions: undefined,
  allResponseIds: 2,
  completionTokens: 2,
  hasEngineError: false,
  hasUnreadable: false,
};

describe("decideCompleteness (invariant 2: missing is never zero)", () => {
  it.each<[string, Partial<CompletenessFacts>, string | undefined]>([
    ["whole", {}, undefined],
    [
      "whole, two versions",
      {
        policyVersions: [
          { version: 3, start: 0, end: 1 },
          { version: 4, start: 1, end: 2 },
        ],
      },
      undefined,
    ],
    ["n = 2: usage counts all choices", { allResponseIds: 5, completionTokens: 5 }, undefined],
    ["engine error", { hasEngineError: true }, "engine-error"],
    ["aborted", { finishReason: null, completionTokens: undefined }, "finish-missing"],
    ["an event that was no JSON", { hasUnreadable: true }, "event-unreadable"],
    ["no prompt ids", { promptIds: null }, "prompt-ids-missing"],
    ["empty prompt ids", { promptIds: [] }, "prompt-ids-missing"],
    ["no response ids", { responseIds: null }, "ids-missing"],
    ["empty response ids", { responseIds: [] }, "ids-missing"],
    ["negative id", { responseIds: [3, -1] }, "ids-invalid"],
    ["fractional id", { promptIds: [1, 2.5] }, "ids-invalid"],
    ["id beyond 31 bits", { responseIds: [3, 2 ** 31] }, "ids-invalid"],
    ["id as text", { responseIds: [3, "4"] }, "ids-invalid"],
    ["no logprobs", { logprobs: null }, "logprobs-missing"],
    ["one logprob short", { logprobs: [-0.5] }, "logprobs-count"],
    ["NaN", { logprobs: [-0.5, Number.NaN] }, "logprob-not-finite"],
    ["minus infinity", { logprobs: [Number.NEGATIVE_INFINITY, 0] }, "logprob-not-finite"],
    ["clamped minus infinity", { logprobs: [-0.5, -9999] }, "logprob-clamped"],
    ["no usage", { completionTokens: undefined }, "usage-missing"],
    ["ids swallowed by a parser", { completionTokens: 3 }, "usage-mismatch"],
    ["span gap", { policyVersions: [{ version: 3, start: 0, end: 1 }] }, "policy-versions-invalid"],
    [
      "span overlap",
      {
        policyVersions: [
          { version: 3, start: 0, end: 2 },
          { version: 4, start: 1, end: 2 },
        ],
      },
      "policy-versions-invalid",
    ],
    [
      "span without version",
      { policyVersions: [{ version: Number.NaN, start: 0, end: 2 }] },
      "policy-versions-invalid",
    ],
  ])("%s", (_name, change, expected) => {
    expect(decideCompleteness({ ...whole, ...change })).toBe(expected);
  });
});
