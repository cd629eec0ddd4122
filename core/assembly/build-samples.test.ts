import { describe, expect, it } from "vitest";
import { formatCaptureReport } from "../capture-report-text.ts";
import { findThresholdBreaches } from "../capture-report-thresholds.ts";
import { buildSamples } from "./build-samples.ts";
import { buildCall } from "./testing/build-call.ts";

const calls = [
  buildCall("c1", [1], [2, 3], { rolloutId: "r2", attemptId: "b" }),
  buildCall("c2", [1, 2, 3, 4], [5], { rolloutId: "r2", attemptId: "c" }),
  buildCall("c3", [1], [2], { rolloutId: "r1" }),
  buildCall("c4", [1], [7], { rolloutId: "r3", logprobs: null }),
];

function rows(samples: ReturnType<typeof buildSamples>["samples"]): string[] {
  return samples.map((s) => `${s.rolloutId}/${s.attemptId} ${s.tokenIds.join(" ")}`);
}

describe("buildSamples", () => {
  it("assembles each attempt for itself: attempts never share a trajectory", () => {
    const { samples } = buildSamples(calls);
    expect(rows(samples)).toEqual(["r1/a 1 2", "r2/b 1 2 3", "r2/c 1 2 3 4 5"]);
    expect([...(samples[2]?.lossMask ?? [])]).toEqual([0, 0, 0, 0, 1]);
    expect(buildSamples(calls.toReversed())).toEqual(buildSamples(calls));
  });

  it("gives no sample without an accepted attempt", () => {
    const acceptedAttempts = new Map([["r2", "c"]]);
    const { samples, report } = buildSamples(calls, { acceptedAttempts });
    expect(rows(samples)).toEqual(["r2/c 1 2 3 4 5"]);
    expect(report.zeroCapture).toBe(2);
  });

  it("reports coverage, and rollouts that never called", () => {
    const { report } = buildSamples(calls, {
      expectedRollouts: ["r1", "r4"],
      rewardedRollouts: new Set(["r1", "r2", "r3"]),
    });
    expect(report.rollouts.map((rollout) => [rollout.rolloutId, rollout.isZeroCapture])).toEqual([
      ["r1", false],
      ["r2", false],
      ["r3", true],
      ["r4", true],
    ]);
    expect(report).toMatchObject({ zeroCapture: 2, rewardCoverage: 0.75, logprobCoverage: 0.8 });
    expect(report.total.tokens).toMatchObject({ sampled: 5, trained: 4, rows: 10 });
    expect(report.total.attempts).toBe(4);
    expect(formatCaptureReport(report)).toContain("incomplete: logprobs-missing 1");
  });

  it("knows nothing of reward coverage unless told", () => {
    expect(buildSamples(calls).report.rewardCoverage).toBeNull();
    expect(buildSamples([]).report).toMatchObject({ logprobCoverage: null, zeroCapture: 0 });
  });
});

describe("thresholds", () => {
  const { report } = buildSamples(calls, { rewardedRollouts: new Set(["r1"]) });
  it.each([
    [{}, []],
    [
      { maxIncomplete: 0.25, maxZeroCapture: 0.34, maxLostTokens: 0.2, minLogprobCoverage: 0.8 },
      [],
    ],
    [{ maxIncomplete: 0.2 }, ["incomplete calls: 25 %, at most 20 % wanted"]],
    [{ maxZeroCapture: 0 }, ["rollouts without a trainable token: 33.333 %, at most 0 % wanted"]],
    [{ maxLostTokens: 0.1 }, ["lost tokens: 20 %, at most 10 % wanted"]],
    [{ minLogprobCoverage: 0.9 }, ["logprob coverage: 80 %, at least 90 % wanted"]],
    [{ minRewardCoverage: 0.5 }, ["reward coverage: 33.333 %, at least 50 % wanted"]],
    [{ maxBreaks: 0 }, []],
  ])("%j", (thresholds, messages) => {
    const breaches = findThresholdBreaches(report, thresholds);
    expect(breaches.map((breach) => breach.message)).toEqual(messages);
  });

  it("counts breaks", () => {
    const edited = [buildCall("c1", [1], [2, 3, 4]), buildCall("c2", [1, 9, 9], [5])];
    const breaches = findThresholdBreaches(buildSamples(edited).report, { maxBreaks: 0.1 });
    expect(breaches).toMatchObject([{ threshold: "maxBreaks", actual: 0.5, limit: 0.1 }]);
  });
});
