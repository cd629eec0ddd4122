import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type BatchEstimator, batchAdvantages } from "./batch-advantages.ts";
import { type GroupEstimator, groupAdvantages, hasSignal } from "./group-advantages.ts";

const groupEstimators: readonly GroupEstimator[] = ["grpo", "trl-grpo", "dr-grpo", "rloo"];
const batchEstimators: readonly BatchEstimator[] = [
  "reinforce-plus-plus",
  "reinforce-plus-plus-baseline",
  "trl-grpo-batch-std",
];
const reward = fc.double({ min: -10, max: 10, noNaN: true, noDefaultInfinity: true });
const group = fc.array(fc.tuple(reward), { minLength: 2, maxLength: 12 });

function sum(values: readonly (readonly number[])[]): number {
  return values.flat().reduce((total, value) => total + value, 0);
}

describe.each(groupEstimators)("%s", (estimator) => {
  const advantagesOf = (rollouts: readonly (readonly number[])[]) =>
    groupAdvantages(rollouts, { estimator }).flat();

  it("adds up to 0 over a group", () => {
    fc.assert(
      fc.property(group, (rollouts) => {
        expect(sum(groupAdvantages(rollouts, { estimator }))).toBeCloseTo(0, 6);
      }),
    );
  });

  it("does not change when all rewards move together", () => {
    fc.assert(
      fc.property(group, reward, (rollouts, shift) => {
        const spread = rollouts.flat().map((value) => Math.abs(value - (rollouts[0]?.[0] ?? 0)));
        fc.pre(Math.max(...spread) > 0.01);
        const moved = rollouts.map(([value]) => [value + shift]);
        const [before, after] = [advantagesOf(rollouts), advantagesOf(moved)];
        before.forEach((value, i) => expect(after[i]).toBeCloseTo(value, 5));
      }),
    );
  });

  it("keeps the order of rewards and follows rollouts wherever they stand", () => {
    fc.assert(
      fc.property(group, (rollouts) => {
        const advantages = advantagesOf(rollouts);
        const reversed = advantagesOf(rollouts.toReversed()).toReversed();
        advantages.forEach((value, i) => {
          expect(reversed[i]).toBeCloseTo(value, 6);
          advantages.forEach((other, j) => {
            if ((rollouts[i]?.[0] as number) > (rollouts[j]?.[0] as number)) {
              expect(value).toBeGreaterThanOrEqual(other - 1e-9);
            }
          });
        });
      }),
    );
  });

  it("leaves out of the statistics what the baseline leaves out", () => {
    const inside = [[1], [0], [0]];
    const all = [...inside, [100]];
    const advantages = groupAdvantages(all, { estimator }, inside);
    expect(advantages.slice(0, 3)).toEqual(groupAdvantages(inside, { estimator }));
    expect(advantages[3]?.[0]).toBeGreaterThan(1);
  });

  it("shrunk to one by failures of the infrastructure, gives 0 and not the raw reward", () => {
    expect(groupAdvantages([[1]], { estimator }, [[1]])).toEqual([[0]]);
    expect(groupAdvantages([[1]], { estimator }, [])).toEqual([[0]]);
  });
});

describe.each(batchEstimators)("%s", (estimator) => {
  it("adds up to 0 over the batch and ignores how long rollouts are", () => {
    fc.assert(
      fc.property(fc.array(group, { minLength: 1, maxLength: 4 }), (rewards) => {
        const groups = rewards.map((rollouts) => ({ rollouts, baseline: rollouts }));
        const advantages = batchAdvantages(groups, estimator);
        expect(sum(advantages.flat())).toBeCloseTo(0, 4);
        const longer = rewards.map((rollouts) => {
          const repeated = rollouts.map(([value], i) => Array.from({ length: i + 1 }, () => value));
          return { rollouts: repeated, baseline: repeated };
        });
        batchAdvantages(longer, estimator).forEach((longGroup, g) =>
          longGroup.forEach((values, r) =>
            values.forEach((value) => expect(value).toBeCloseTo(advantages[g]?.[r]?.[0] ?? NaN, 4)),
          ),
        );
      }),
      { numRuns: 50 },
    );
  });
});

describe("hasSignal", () => {
  it.each([
    [[], false],
    [[[1]], false],
    [[[1, 0]], false],
    [[[1], [1]], false],
    [[[1], [0]], true],
    [
      [
        [1, 0],
        [1, 0],
      ],
      true,
    ],
  ])("%j: %s", (rollouts, expected) => {
    expect(hasSignal(rollouts)).toBe(expected);
  });
});
