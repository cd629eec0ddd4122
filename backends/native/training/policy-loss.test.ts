import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { TrainingSample } from "../../../core/sample.ts";
import type { OffPolicyCorrection, PolicyLoss } from "../../../core/trainer-backend.ts";
import { policyLossOfRow, responses } from "./policy-loss.ts";

const none: OffPolicyCorrection = { kind: "none" };
const ppo: PolicyLoss = { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 };

interface Row {
  readonly mask: readonly number[];
  readonly sampling: readonly number[];
  readonly advantages: readonly number[];
  readonly weights?: readonly number[];
}

function sampleOf({ mask, sampling, advantages, weights }: Row): TrainingSample {
  return {
    rolloutId: "r",
    attemptId: "a",
    groupId: "g",
    tokenIds: new Int32Array(mask.length),
    lossMask: Uint8Array.from(mask),
    samplingLogprobs: Float32Array.from(sampling, (v, t) => (mask[t] === 1 ? v : Number.NaN)),
    policyVersions: Int32Array.from(mask, (m) => (m === 1 ? 0 : -1)),
    advantages: Float32Array.from(advantages),
    weights: Float32Array.from(weights ?? mask),
    callIds: ["c"],
  };
}

/** One trained token after one of context, with the given ratio and advantage. */
function oneToken(ratio: number, advantage: number, loss: PolicyLoss, correction = none) {
  const sample = sampleOf({ mask: [0, 1], sampling: [0, -1], advantages: [0, advantage] });
  const logprobs = Float32Array.of(Number.NaN, -1 + Math.log(ratio));
  return policyLossOfRow({ sample, logprobs }, { loss, correction, klCoefficient: 0 });
}

describe("policyLossOfRow", () => {
  // Worked by hand: the token's ratio and advantage, then loss, slope and whether it is clipped.
  it.each<[string, PolicyLoss, number, number, number, number, number]>([
    ["ppo inside the bounds", ppo, 1.1, 2, -2.2, -2.2, 0],
    ["ppo above, good token", ppo, 1.5, 2, -2.4, 0, 1],
    ["ppo above, bad token", ppo, 1.5, -2, 3, 3, 0],
    ["ppo below, good token", ppo, 0.5, 2, -1, -1, 0],
    ["ppo below, bad token", ppo, 0.5, -2, 1.6, 0, 1],
    ["dual clip, bad token far above", { ...ppo, dualClip: 3 }, 4, -2, 6, 0, 1],
    ["dual clip, bad token not so far", { ...ppo, dualClip: 3 }, 2, -2, 4, 4, 0],
    ["dual clip leaves good tokens", { ...ppo, dualClip: 3 }, 4, 2, -2.4, 0, 1],
    ["importance sampling", { kind: "importance-sampling" }, 4, 2, -8, -8, 0],
    [
      "cispo inside",
      { kind: "cispo", clipLow: 0, clipHigh: 4 },
      2,
      3,
      -6 * (Math.log(2) - 1),
      -6,
      0,
    ],
    [
      "cispo above keeps its slope",
      { kind: "cispo", clipLow: 0, clipHigh: 4 },
      8,
      3,
      -12 * (Math.log(8) - 1),
      -12,
      1,
    ],
    ["gspo of one token is ppo", { kind: "gspo", clipLow: 0.8, clipHigh: 1.2 }, 1.5, 2, -2.4, 0, 1],
  ])("%s", (_what, loss, ratio, advantage, wantedLoss, slope, clipped) => {
    const row = oneToken(ratio, advantage, loss);
    expect(row.loss).toBeCloseTo(wantedLoss, 5);
    expect(row.gradient[1]).toBeCloseTo(slope, 5);
    expect(row.gradient[0]).toBe(0);
    expect(row.clippedCount).toBe(clipped);
  });

  it("uses the response's geometric mean ratio for gspo, over one response at a time", () => {
    // Log ratios 0.2 and 0 in the first response, -0.4 in the second: s = e^0.1 and e^-0.4.
    const sample = sampleOf({
      mask: [0, 1, 1, 0, 1],
      sampling: [0, -1, -1, 0, -1],
      advantages: [0, 1, 1, 0, 1],
    });
    const logprobs = Float32Array.of(Number.NaN, -0.8, -1, -3, -1.4);
    const loss: PolicyLoss = { kind: "gspo", clipLow: 0.9, clipHigh: 1.2 };
    const row = policyLossOfRow({ sample, logprobs }, { loss, correction: none, klCoefficient: 0 });
    expect(row.gradient[1]).toBeCloseTo(-Math.exp(0.1), 6);
    expect(row.gradient[2]).toBeCloseTo(-Math.exp(0.1), 6);
    expect(row.gradient[4]).toBeCloseTo(-Math.exp(-0.4), 6);
    expect(row.loss).toBeCloseTo(-2 * Math.exp(0.1) - Math.exp(-0.4), 6);
  });

  it.each<[string, OffPolicyCorrection, number[], number]>([
    // Token ratios of the start policy: 3 and 0.5; product 1.5.
    ["none: ratio against the sampler", none, [-3, -0.5], 0],
    ["truncate per token, decoupled", { kind: "truncate", level: "token", max: 2 }, [-2, -0.5], 0],
    ["truncate per response", { kind: "truncate", level: "sequence", max: 1.2 }, [-1.2, -1.2], 0],
    ["mask per token", { kind: "mask", level: "token", min: 0.6, max: 4 }, [-3, 0], 1],
    [
      "mask per response, inside",
      { kind: "mask", level: "sequence", min: 1, max: 2 },
      [-3, -0.5],
      0,
    ],
    [
      "mask per response, outside",
      { kind: "mask", level: "sequence", min: 0, max: 1.4 },
      [0, 0],
      2,
    ],
  ])("corrects: %s", (_what, correction, slopes, masked) => {
    const sample = sampleOf({ mask: [0, 1, 1], sampling: [0, -2, -1], advantages: [0, 1, 1] });
    const logprobs = Float32Array.of(Number.NaN, -2 + Math.log(3), -1 + Math.log(0.5));
    const row = policyLossOfRow(
      { sample, logprobs },
      { loss: { kind: "importance-sampling" }, correction, klCoefficient: 0 },
    );
    slopes.forEach((slope, i) => expect(row.gradient[i + 1]).toBeCloseTo(slope, 5));
    expect(row.maskedCount).toBe(masked);
  });

  it("adds KL to the reference (k3), weighted like the loss", () => {
    const sample = sampleOf({
      mask: [0, 1],
      sampling: [0, -1],
      advantages: [0, 0],
      weights: [0, 0.5],
    });
    const row = policyLossOfRow(
      { sample, logprobs: Float32Array.of(0, -1), referenceLogprobs: Float32Array.of(0, -1.5) },
      { loss: ppo, correction: none, klCoefficient: 0.2 },
    );
    expect(row.loss).toBeCloseTo(0.5 * 0.2 * (Math.exp(-0.5) + 0.5 - 1), 6);
    expect(row.gradient[1]).toBeCloseTo(0.5 * 0.2 * (1 - Math.exp(-0.5)), 6);
  });

  it("trains no token without mask or weight", () => {
    const sample = sampleOf({
      mask: [0, 1, 1, 0],
      sampling: [0, -1, -1, 0],
      advantages: [5, 1, 1, 5],
      weights: [1, 0, 1, 1],
    });
    const row = policyLossOfRow(
      { sample, logprobs: Float32Array.of(0, -1, -1, -1) },
      { loss: ppo, correction: none, klCoefficient: 0 },
    );
    expect(row.trained).toEqual([2]);
    expect(Array.from(row.gradient)).toEqual([0, 0, -1, 0]);
  });

  it("has the gradient that finite differences give, for every loss and correction", () => {
    const logprob = fc.double({ min: -4, max: -0.05, noNaN: true });
    const token = fc.record({
      sampling: logprob,
      now: logprob,
      reference: logprob,
      trained: fc.boolean(),
    });
    const lossOf = fc.constantFrom<PolicyLoss>(
      ppo,
      { ...ppo, dualClip: 2 },
      { kind: "importance-sampling" },
      { kind: "gspo", clipLow: 0.7, clipHigh: 1.4 },
    );
    const correctionOf = fc.constantFrom<OffPolicyCorrection>(
      none,
      { kind: "truncate", level: "token", max: 1.5 },
      { kind: "truncate", level: "sequence", max: 2 },
      { kind: "mask", level: "token", min: 0.3, max: 3 },
    );
    fc.assert(
      fc.property(
        fc.array(token, { minLength: 2, maxLength: 6 }),
        fc.double({ min: -2, max: 2, noNaN: true }),
        fc.double({ min: 0.1, max: 1, noNaN: true }),
        lossOf,
        correctionOf,
        (tokens, advantage, weight, loss, correction) => {
          const mask = tokens.map((t, i) => (i > 0 && t.trained ? 1 : 0));
          // GSPO's gradient is exact where advantage, weight and correction are the response's.
          const isPerToken = correction.kind !== "none" && correction.level === "token";
          fc.pre(loss.kind !== "gspo" || !isPerToken);
          const sample = sampleOf({
            mask,
            sampling: tokens.map((t) => t.sampling),
            advantages: mask.map((m) => m * advantage),
            weights: mask.map((m) => m * weight),
          });
          const start = Float32Array.from(tokens, (t) => t.now);
          const referenceLogprobs = Float32Array.from(tokens, (t) => t.reference);
          const at = (logprobs: Float32Array) =>
            policyLossOfRow(
              { sample, logprobs, startLogprobs: start, referenceLogprobs },
              { loss, correction, klCoefficient: 0.3 },
            );
          const { gradient } = at(start);
          const h = 2 ** -9;
          for (let t = 0; t < tokens.length; t++) {
            const moved = (by: number) => {
              const logprobs = start.slice();
              logprobs[t] = logprobs[t]! + by;
              return at(logprobs);
            };
            const [up, down] = [moved(h), moved(-h)];
            // At a kink the two sides differ; there is no derivative to compare with.
            if (up.clippedCount !== down.clippedCount) continue;
            const numeric = (up.loss - down.loss) / (2 * h);
            expect(Math.abs(numeric - gradient[t]!)).toBeLessThan(2e-3 * (1 + Math.abs(numeric)));
          }
        },
      ),
      { numRuns: 300 },
    );
  });

  it("does not change when a row is cut between responses", () => {
    const whole = sampleOf({
      mask: [0, 1, 1, 0, 1],
      sampling: [0, -1, -2, 0, -1],
      advantages: [0, 1, 1, 0, -1],
    });
    const logprobs = Float32Array.of(Number.NaN, -0.8, -1.9, -3, -1.4);
    const settings = {
      loss: { kind: "gspo", clipLow: 0.9, clipHigh: 1.1 } as const,
      correction: { kind: "mask", level: "sequence", min: 0.5, max: 2 } as const,
      klCoefficient: 0,
    };
    const keep = (mask: number[]): TrainingSample => ({
      ...whole,
      lossMask: Uint8Array.from(mask),
    });
    const all = policyLossOfRow({ sample: whole, logprobs }, settings);
    const parts = [keep([0, 1, 1, 0, 0]), keep([0, 0, 0, 0, 1])].map((sample) =>
      policyLossOfRow({ sample, logprobs }, settings),
    );
    expect(parts[0]!.loss + parts[1]!.loss).toBeCloseTo(all.loss, 12);
    all.gradient.forEach((g, t) =>
      expect(parts[0]!.gradient[t]! + parts[1]!.gradient[t]!).toBeCloseTo(g, 12),
    );
  });
});

describe("responses", () => {
  it.each<[number[], [number, number][]]>([
    [[], []],
    [[0, 0], []],
    [[0, 1, 1], [[1, 3]]],
    [
      [1, 0, 1, 1, 0],
      [
        [0, 1],
        [2, 4],
      ],
    ],
  ])("of %j", (mask, runs) => {
    expect(responses(Uint8Array.from(mask))).toEqual(runs);
  });

  it("cuts a run where another response begins right after the one before", () => {
    const mask = Uint8Array.of(0, 1, 1, 1, 0, 1);
    expect(responses(mask, Int32Array.of(2))).toEqual([
      [1, 2],
      [2, 4],
      [5, 6],
    ]);
  });

  it("gives each of two touching responses its own sequence ratio", () => {
    const mask = [0, 1, 1];
    const row = { mask, sampling: [0, -1, -1], advantages: [0, 1, 1] };
    const logprobs = Float32Array.of(Number.NaN, -1 + Math.log(1.1), -1 + Math.log(0.9));
    const settings = {
      loss: { kind: "gspo", clipLow: 0.5, clipHigh: 2 },
      correction: none,
      klCoefficient: 0,
    } as const;
    const apart = { ...sampleOf(row), responseStarts: Int32Array.of(2) };
    expect(policyLossOfRow({ sample: apart, logprobs }, settings).loss).toBeCloseTo(-2, 5);
    const joined = policyLossOfRow({ sample: sampleOf(row), logprobs }, settings).loss;
    expect(joined).toBeCloseTo(-2 * Math.sqrt(1.1 * 0.9), 5);
  });
});
