import { describe, expect, it } from "vitest";
import {
  buildRunCapture,
  emptyCaptureReport,
  type RolloutCapture,
} from "../../core/capture-report.ts";
import { checkLimits } from "./check-limits.ts";
import type { StepMetrics } from "./step-metrics.ts";

const limits = {
  logprobGap: { warn: { mean: 0.01, p99: 0.1, kl: 1e-3 }, stop: { mean: 1, p99: 5, kl: 1 } },
  maxIncompleteFraction: 0.1,
  maxNeverCalledFraction: 0.5,
  maxMissingRewardFraction: 0.5,
  maxInfraErrorFraction: 0.5,
  capture: { maxZeroCapture: 0.5 },
};
const empty = emptyCaptureReport();
const metrics = (over: Partial<StepMetrics>): StepMetrics => ({
  step: 1,
  version: 1,
  applied: true,
  rollouts: { total: 10, byEndReason: { succeeded: 10 }, trained: 10, rewarded: 10 },
  reward: { mean: 0.5, std: 0.1 },
  groups: { total: 2, zeroSignal: 0, dropped: 0 },
  samples: 10,
  trainedTokens: 100,
  rowTokens: 200,
  staleness: { mean: 0, max: 0 },
  loss: 0,
  gradNorm: 1,
  meanRatio: 1,
  clippedFraction: 0,
  logprobGap: { meanAbs: 1e-6, p99Abs: 1e-6, maxAbs: 1e-6, kl: 0 },
  capture: { ...empty, calls: { ...empty.calls, samplings: 20 } },
  zeroCapture: 0,
  backend: {},
  seconds: { sampling: 1, update: 1 },
  ...over,
});
const rollouts = (byEndReason: Record<string, number>, rewarded: number) => ({
  rollouts: { total: 10, byEndReason, trained: rewarded, rewarded },
});
const gap = (meanAbs: number, p99Abs = 0, kl = 0) => ({
  logprobGap: { meanAbs, p99Abs, maxAbs: p99Abs, kl },
});

describe("checkLimits", () => {
  it("lets a healthy step pass", () => {
    expect(checkLimits(metrics({}), limits)).toEqual({ warnings: [], stops: [] });
  });

  it.each([
    [
      "never-called",
      rollouts({ "never-called": 6, succeeded: 4 }, 4),
      "limits.maxNeverCalledFraction",
    ],
    [
      "infra-error",
      rollouts({ "infra-error": 6, succeeded: 4 }, 4),
      "limits.maxInfraErrorFraction",
    ],
    ["missing rewards", rollouts({ succeeded: 10 }, 4), "limits.maxMissingRewardFraction"],
    [
      "incomplete calls",
      {
        capture: {
          ...empty,
          calls: { ...empty.calls, samplings: 20, incomplete: { "ids-missing": 3 } },
        },
      },
      "limits.maxIncompleteFraction",
    ],
    ["a mean logprob gap", gap(2), "limits.logprobGap.stop.mean"],
    ["a tail of the logprob gap", gap(0, 6), "limits.logprobGap.stop.p99"],
    ["a KL estimate", gap(0, 0, 1.5), "limits.logprobGap.stop.kl"],
    ["a gap that is no number", gap(Number.NaN), "limits.logprobGap.stop.mean"],
  ] as [string, Partial<StepMetrics>, string][])(
    "stops for %s and names the limit",
    (_n, over, name) => {
      const { stops } = checkLimits(metrics(over), limits);
      expect(stops).toHaveLength(1);
      expect(stops[0]).toContain(name);
    },
  );

  it("does not count a reward as missing where none is wanted", () => {
    const lost = rollouts({ "infra-error": 5, succeeded: 5 }, 5);
    expect(checkLimits(metrics(lost), limits).stops).toEqual([]);
  });

  it.each([
    ["mean", gap(0.05)],
    ["p99", gap(0, 0.5)],
    ["kl", gap(0, 0, 0.01)],
  ] as const)("warns of %s only where the policy has not moved on", (name, wide) => {
    const { warnings, stops } = checkLimits(metrics(wide), limits);
    expect(stops).toEqual([]);
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain(`limits.logprobGap.warn.${name}`);
    const moved = { ...wide, staleness: { mean: 1, max: 2 } };
    expect(checkLimits(metrics(moved), limits)).toEqual({ warnings: [], stops: [] });
  });

  it("does not warn of what stops", () => {
    expect(checkLimits(metrics(gap(2, 6, 2)), limits).warnings).toEqual([]);
  });

  describe("holds the capture report against limits.capture", () => {
    const rollout = (rolloutId: string, trained: number, lost: number): RolloutCapture => ({
      rolloutId,
      attemptIds: ["1"],
      isZeroCapture: trained === 0,
      hasReward: true,
      report: {
        ...empty,
        calls: { ...empty.calls, records: 1, samplings: 1, trained: 1 },
        tokens: {
          ...empty.tokens,
          sampled: trained + lost,
          withLogprobs: trained,
          trained,
          lost: { ...empty.tokens.lost, incomplete: lost },
        },
        breaks: { ...empty.breaks, template: lost === 0 ? 0 : 1 },
      },
    });
    const captured = buildRunCapture([rollout("a", 80, 20), rollout("b", 0, 0)]);

    it.each([
      [
        { maxZeroCapture: 0.4 },
        [
          "limits.capture.maxZeroCapture: rollouts without a trainable token: 50 %, at most 40 % wanted",
        ],
      ],
      [
        { maxLostTokens: 0.1 },
        ["limits.capture.maxLostTokens: lost tokens: 20 %, at most 10 % wanted"],
      ],
      [
        { minLogprobCoverage: 0.9 },
        ["limits.capture.minLogprobCoverage: logprob coverage: 80 %, at least 90 % wanted"],
      ],
      [
        { maxBreaks: 0.3 },
        ["limits.capture.maxBreaks: breaks between turns: 50 %, at most 30 % wanted"],
      ],
      [{ minRewardCoverage: 1 }, []],
    ])("%o", (capture, stops) => {
      expect(
        checkLimits(
          metrics({}),
          { ...limits, capture: { maxZeroCapture: 1, ...capture } },
          captured,
        ).stops,
      ).toEqual(stops);
    });
  });
});
