import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { assembleAttempt } from "../assembly/assemble-attempt.ts";
import type { AssembledSample } from "../assembly/assembled-sample.ts";
import { seededRandom } from "../assembly/testing/random.ts";
import { randomAttempt, wildHabits } from "../assembly/testing/random-attempt.ts";
import { splitRows } from "../assembly/testing/split-rows.ts";
import { tokenWeights } from "./token-weights.ts";
import { isRowDependent, type Weighting } from "./weighting.ts";

const weightings: readonly Weighting[] = [
  { kind: "rollout-mean" },
  { kind: "token-mean" },
  { kind: "call-mean" },
  { kind: "constant-norm", normTokens: 64 },
  { kind: "verl-token-mean" },
  { kind: "verl-token-sum" },
  { kind: "trl-bnpo" },
  { kind: "trl-dapo" },
  { kind: "verl-seq-mean-token-mean" },
  { kind: "verl-seq-mean-token-sum" },
  { kind: "verl-seq-mean-token-sum-norm", normTokens: 64 },
  { kind: "trl-grpo" },
  { kind: "trl-dr-grpo", normTokens: 64 },
  { kind: "agl-per-rollout-mean" },
];

/** Rows of several rollouts. */
function randomRows(seed: number, rollouts = 3): AssembledSample[] {
  return Array.from({ length: rollouts }, (_, i) => i).flatMap((i) => {
    const { records } = randomAttempt(seed + i, wildHabits);
    const calls = records.map((call) => ({ ...call, rolloutId: `r${i}` }));
    return [...assembleAttempt(calls).samples];
  });
}

/** Weight of each trained token, by rollout, call and position. */
function weightsByToken(
  samples: readonly AssembledSample[],
  weighting: Weighting,
): Map<string, number> {
  const weights = tokenWeights(samples, weighting);
  const byToken = new Map<string, number>();
  samples.forEach((sample, row) => {
    for (const { call, start, end } of sample.spans) {
      for (let at = start; at < end; at++) {
        byToken.set(`${sample.rolloutId}/${call.callId}/${at}`, weights[row]?.[at] as number);
      }
    }
  });
  return byToken;
}

function sum(values: Iterable<number>): number {
  return [...values].reduce((total, value) => total + value, 0);
}

describe("invariant 4: a rollout's weight does not depend on its rows", () => {
  it.each(weightings.filter(({ kind }) => !isRowDependent(kind)))("$kind", (weighting) => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 1e6 }), (seed) => {
        const samples = randomRows(seed);
        const split = splitRows(samples, seededRandom(seed));
        expect(weightsByToken(split, weighting)).toEqual(weightsByToken(samples, weighting));
      }),
      { numRuns: 10 },
    );
  });

  it.each(weightings.filter(({ kind }) => isRowDependent(kind)))(
    "$kind is marked as row-dependent, and is",
    (weighting) => {
      const samples = randomRows(7);
      const split = splitRows(samples, seededRandom(7));
      expect(weightsByToken(split, weighting)).not.toEqual(weightsByToken(samples, weighting));
    },
  );
});

describe("totals", () => {
  const samples = randomRows(3);
  const totalBy = (weighting: Weighting, keyOf: (token: string) => string) => {
    const totals = new Map<string, number>();
    for (const [token, weight] of weightsByToken(samples, weighting)) {
      totals.set(keyOf(token), (totals.get(keyOf(token)) ?? 0) + weight);
    }
    return [...totals.values()];
  };

  it("rollout-mean: each of R rollouts weighs 1 / R", () => {
    const totals = totalBy({ kind: "rollout-mean" }, (token) => token.split("/")[0] as string);
    expect(totals).toHaveLength(3);
    for (const total of totals) expect(total).toBeCloseTo(1 / 3, 5);
  });

  it("call-mean: each of C responses weighs 1 / C", () => {
    const totals = totalBy({ kind: "call-mean" }, (token) => token.replace(/\/\d+$/, ""));
    for (const total of totals) expect(total).toBeCloseTo(1 / totals.length, 5);
  });

  it("token-mean: all weigh the same, 1 together", () => {
    const weights = [...weightsByToken(samples, { kind: "token-mean" }).values()];
    expect(new Set(weights).size).toBe(1);
    expect(sum(weights)).toBeCloseTo(1, 5);
  });

  it("constant-norm: 1 / (R · L), whatever the lengths", () => {
    const weights = weightsByToken(samples, { kind: "constant-norm", normTokens: 50 });
    expect(new Set(weights.values())).toEqual(new Set([Math.fround(1 / 150)]));
  });

  it("gives nothing to tokens that are not trained", () => {
    for (const weighting of weightings) {
      tokenWeights(samples, weighting).forEach((weights, row) => {
        weights.forEach((weight, at) => {
          expect(weight > 0).toBe(samples[row]?.lossMask[at] === 1);
        });
      });
    }
  });

  it.each([0, -1, Number.NaN])("refuses a constant norm of %s tokens", (normTokens) => {
    expect(() => tokenWeights(samples, { kind: "constant-norm", normTokens })).toThrowError(
      /positive number of tokens/,
    );
  });
});
