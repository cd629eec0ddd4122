import { describe, expect, it } from "vitest";
import { type BatchEstimator, batchAdvantages } from "../../../core/advantages/batch-advantages.ts";
import { gigpoAdvantages } from "../../../core/advantages/gigpo-advantages.ts";
import { type GroupEstimator, groupAdvantages } from "../../../core/advantages/group-advantages.ts";
import { rolloutValues } from "../../../core/advantages/rollout-values.ts";

// Every number below was worked out by hand from the formula in the comment beside it.

function expectClose(actual: readonly number[][], expected: readonly (readonly number[])[]): void {
  expect(actual.map((values) => values.length)).toEqual(expected.map((values) => values.length));
  actual.flat().forEach((value, i) => expect(value).toBeCloseTo(expected.flat()[i] as number, 5));
}

describe("one group", () => {
  it.each([
    // mean 1/2, variance 4 · (1/4) / 3 = 1/3, std 0.577350; ± 0.5 / 0.577351
    ["grpo", [1, 0, 0, 1], [0.866024, -0.866024, -0.866024, 0.866024]],
    // mean 1/3, variance (4/9 + 1/9 + 1/9) / 2 = 1/3; 2/3 / 0.577351 and -1/3 / 0.577351
    ["grpo", [1, 0, 0], [1.154699, -0.577349, -0.577349]],
    // ± 0.5 / (0.707107 + 0.0001)
    ["trl-grpo", [1, 0], [0.707007, -0.707007]],
    ["dr-grpo", [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]],
    // 1 - mean(0, 0), 0 - mean(1, 0)
    ["rloo", [1, 0, 0], [1, -0.5, -0.5]],
    // 3 - mean(1, -1), 1 - mean(3, -1), -1 - mean(3, 1)
    ["rloo", [3, 1, -1], [3, 0, -3]],
  ] as const)("%s of rewards %j", (estimator, rewards, expected) => {
    const actual = groupAdvantages(
      rewards.map((reward) => [reward]),
      { estimator },
    );
    expectClose(
      actual,
      expected.map((value) => [value]),
    );
  });

  it.each(["grpo", "trl-grpo", "dr-grpo", "rloo"] as const)(
    "%s: one rollout gives 0",
    (estimator) => {
      expect(groupAdvantages([[0.7]], { estimator })).toEqual([[0]]);
      expect(groupAdvantages([[0.7, 0.1]], { estimator })).toEqual([[0, 0]]);
    },
  );

  it.each(["grpo", "trl-grpo", "dr-grpo", "rloo"] as const)(
    "%s: equal rewards give 0",
    (estimator) => {
      expect(groupAdvantages([[0.1], [0.1], [0.1]], { estimator })).toEqual([[0], [0], [0]]);
    },
  );

  it.each<[GroupEstimator, number[][]]>([
    // Rollouts (2, 0) and (1): both have mean 1. Variance ((1 + 1) / 2 + 0) / 1 = 1.
    ["grpo", [[1, -1], [0]]],
    ["dr-grpo", [[1, -1], [0]]],
    // The other rollout's mean is 1 in both cases.
    ["rloo", [[1, -1], [0]]],
  ])("%s with values per turn: every rollout counts once", (estimator, expected) => {
    expectClose(groupAdvantages([[2, 0], [1]], { estimator }), expected);
  });
});

describe("a batch of the groups (1, 0) and (1, 1)", () => {
  const groups = [
    [[1], [0]],
    [[1], [1]],
  ].map((rollouts) => ({ rollouts, baseline: rollouts }));
  it.each<[BatchEstimator, number[][][]]>([
    // mean 3/4, variance (3 · 1/16 + 9/16) / 3 = 1/4, std 1/2
    [
      "reinforce-plus-plus",
      [
        [[0.5], [-1.5]],
        [[0.5], [0.5]],
      ],
    ],
    // centred (1/2, -1/2, 0, 0), variance (1/4 + 1/4) / 3 = 1/6; 0.5 / 0.408248
    [
      "reinforce-plus-plus-baseline",
      [
        [[1.224745], [-1.224745]],
        [[0], [0]],
      ],
    ],
    // centred as above, over the batch's std 1/2 + 0.0001
    [
      "trl-grpo-batch-std",
      [
        [[0.9998], [-0.9998]],
        [[0], [0]],
      ],
    ],
  ])("%s", (estimator, expected) => {
    batchAdvantages(groups, estimator).forEach((group, g) =>
      expectClose(group, expected[g] as number[][]),
    );
  });

  it.each<BatchEstimator>([
    "reinforce-plus-plus",
    "reinforce-plus-plus-baseline",
    "trl-grpo-batch-std",
  ])("%s: nothing to compare gives 0", (estimator) => {
    const one = [{ rollouts: [[0.3]], baseline: [[0.3]] }];
    expect(batchAdvantages(one, estimator)).toEqual([[[0]]]);
    const equal = [{ rollouts: [[0.3], [0.3]], baseline: [[0.3], [0.3]] }];
    expect(batchAdvantages(equal, estimator)).toEqual([[[0], [0]]]);
  });
});

describe("returns per turn", () => {
  it("discounts backwards; an event belongs to the last turn that had begun", () => {
    // Turns at 10, 20 and 30 ms. Rewarded: 1 at turn 0, 2 + 4 at turn 2.
    // 6; 0 + 0.5 · 6 = 3; 1 + 0.5 · 3 = 2.5
    const events = [
      { atMs: 30, value: 2 },
      { atMs: 19, value: 1 },
    ];
    const credit = { kind: "per-turn", discount: 0.5 } as const;
    expect(rolloutValues({ reward: 4, events }, [10, 20, 30], credit)).toEqual([2.5, 3, 6]);
    expect(rolloutValues({ reward: undefined, events }, [10, 20, 30], credit)).toEqual([1.5, 1, 2]);
  });

  it("gives an event before the first turn to the first", () => {
    const events = [{ atMs: 1, value: 3 }];
    const credit = { kind: "per-turn", discount: 1 } as const;
    expect(rolloutValues({ reward: undefined, events }, [10, 20], credit)).toEqual([3, 0]);
  });

  it("never makes a zero of a missing reward", () => {
    expect(rolloutValues({ reward: undefined }, [1], { kind: "outcome" })).toBeUndefined();
    expect(
      rolloutValues({ reward: undefined, events: [] }, [1], { kind: "per-turn", discount: 1 }),
    ).toBeUndefined();
    expect(rolloutValues({ reward: 0 }, [1], { kind: "outcome" })).toEqual([0]);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])("refuses the reward %s", (reward) => {
    expect(() => rolloutValues({ reward }, [1], { kind: "outcome" })).toThrowError(/a reward is/);
  });
});

describe("gigpo", () => {
  const winner = { episodeReward: 1, returns: [0.5, 1], anchors: ["s0", "s1"], isInBaseline: true };
  const loser = { episodeReward: 0, returns: [0, 0], anchors: ["s0", "s1"], isInBaseline: true };
  const plain = { stepWeight: 1, normalises: false };

  it("adds the step-level comparison of equal states to the episode's", () => {
    // Episodes 1 and 0: ± 1/2. State s0 returns 1/2 and 0: ± 1/4. State s1 returns 1 and 0: ± 1/2.
    expectClose(gigpoAdvantages([winner, loser], plain), [
      [0.75, 1],
      [-0.75, -1],
    ]);
  });

  it("weighs the step level and divides by std when asked", () => {
    // Two values a and b: std = |a - b| / sqrt(2), so every comparison is ± 0.707107.
    expectClose(gigpoAdvantages([winner, loser], { stepWeight: 0.5, normalises: true }), [
      [1.060656, 1.060658],
      [-1.060656, -1.060658],
    ]);
  });

  it("gives no step advantage in a state met once", () => {
    const elsewhere = { ...loser, anchors: ["s0", "s9"] };
    expectClose(gigpoAdvantages([winner, elsewhere], plain), [
      [0.75, 0.5],
      [-0.75, -0.5],
    ]);
  });

  it("leaves out of both levels what the baseline leaves out", () => {
    const failed = { ...winner, episodeReward: 9, returns: [9, 9], isInBaseline: false };
    expectClose(gigpoAdvantages([winner, loser, failed], plain).slice(0, 2), [
      [0.75, 1],
      [-0.75, -1],
    ]);
  });

  it("compares a state that one rollout meets twice with itself", () => {
    // s0 returns 1/2 and 1 of one rollout, 0 of the other: mean 1/2.
    const looping = { ...winner, anchors: ["s0", "s0"] };
    const short = { episodeReward: 0, returns: [0], anchors: ["s0"], isInBaseline: true };
    expectClose(gigpoAdvantages([looping, short], plain), [[0.5, 1], [-1]]);
  });
});
