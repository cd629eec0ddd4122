import { describe, expect, it } from "vitest";
import { assembleAttempt } from "../assembly/assemble-attempt.ts";
import { buildCall } from "../assembly/testing/build-call.ts";
import {
  buildTrainingSamples,
  type TrainingGroup,
  type TrainingRollout,
} from "./build-training-samples.ts";

const grpo = { advantages: { estimator: "dr-grpo" } } as const;

/** Two turns in one row: `1 [2] 3 [4 5]`. */
function rollout(
  rolloutId: string,
  reward: number | undefined,
  more: Partial<TrainingRollout> = {},
): TrainingRollout {
  const calls = [
    buildCall("c1", [1], [2], { rolloutId }),
    buildCall("c2", [1, 2, 3], [4, 5], { rolloutId }),
  ];
  return { rolloutId, reward, samples: assembleAttempt(calls).samples, ...more };
}

/** The same two turns, but history was edited between them: two rows. */
function brokenRollout(rolloutId: string, reward: number): TrainingRollout {
  const calls = [
    buildCall("c1", [1], [2], { rolloutId }),
    buildCall("c2", [1, 9, 3], [4, 5], { rolloutId }),
  ];
  return { rolloutId, reward, samples: assembleAttempt(calls).samples };
}

function group(groupId: string, ...rollouts: TrainingRollout[]): TrainingGroup {
  return { groupId, rollouts };
}

describe("buildTrainingSamples", () => {
  it("broadcasts advantages to trained tokens and weighs each rollout 1 / R", () => {
    const { samples, ...step } = buildTrainingSamples(
      [group("g", rollout("a", 1), rollout("b", 0))],
      grpo,
    );
    expect(samples.map((sample) => [...sample.advantages])).toEqual([
      [0, 0.5, 0, 0.5, 0.5],
      [0, -0.5, 0, -0.5, -0.5],
    ]);
    const sixth = Math.fround(1 / 6);
    expect([...(samples[0]?.weights ?? [])]).toEqual([0, sixth, 0, sixth, sixth]);
    expect(samples.map((sample) => sample.groupId)).toEqual(["g", "g"]);
    expect(samples[0]).not.toHaveProperty("spans");
    expect(step).toEqual({
      groups: 1,
      zeroSignalGroups: 0,
      droppedGroups: 0,
      trainedRollouts: 2,
      missingRewards: 0,
      maskedRollouts: 0,
      trainedTokens: 6,
    });
  });

  it("says where a response begins right after another", () => {
    const calls = [
      buildCall("c1", [1], [2, 3], { rolloutId: "a" }),
      buildCall("c2", [1, 2, 3], [4], { rolloutId: "a" }),
      buildCall("c3", [1, 2, 3, 4, 5], [6], { rolloutId: "a" }),
    ];
    const touching = { rolloutId: "a", reward: 1, samples: assembleAttempt(calls).samples };
    const { samples } = buildTrainingSamples([group("g", touching, rollout("b", 0))], grpo);
    expect(samples.map((sample) => sample.responseStarts)).toEqual([Int32Array.of(3), undefined]);
    expect(samples[1]).not.toHaveProperty("responseStarts");
  });

  it("gives a rollout the same advantage and weight however many rows it became", () => {
    const { samples } = buildTrainingSamples(
      [group("g", brokenRollout("a", 1), rollout("b", 0))],
      grpo,
    );
    expect(samples).toHaveLength(3);
    const ofA = samples.filter((sample) => sample.rolloutId === "a");
    const trained = ofA.flatMap((sample) => [...sample.advantages].filter((x) => x !== 0));
    expect(trained).toEqual([0.5, 0.5, 0.5]);
    const weight = ofA.flatMap((sample) => [...sample.weights]).reduce((sum, x) => sum + x, 0);
    expect(weight).toBeCloseTo(1 / 2, 6);
  });

  it("masks a rollout without a reward and leaves it out of the baseline and of R", () => {
    const { samples, ...step } = buildTrainingSamples(
      [group("g", rollout("a", 1), rollout("b", 0), rollout("c", undefined))],
      grpo,
    );
    expect(samples.map((sample) => [sample.rolloutId, sample.advantages[1]])).toEqual([
      ["a", 0.5],
      ["b", -0.5],
    ]);
    expect(step).toMatchObject({ trainedRollouts: 2, missingRewards: 1 });
  });

  it("leaves a failure of the infrastructure out; a group shrunk to one gives 0", () => {
    const failed = rollout("b", 0, { isTrainable: false, isInBaseline: false });
    const { samples, ...step } = buildTrainingSamples([group("g", rollout("a", 1), failed)], grpo);
    expect(samples.map((sample) => sample.rolloutId)).toEqual(["a"]);
    expect([...(samples[0]?.advantages ?? [])]).toEqual([0, 0, 0, 0, 0]);
    expect(step).toMatchObject({ maskedRollouts: 1, zeroSignalGroups: 1 });
  });

  it("counts a masked rollout in the baseline if told so", () => {
    const masked = rollout("b", 0, { isTrainable: false });
    const { samples } = buildTrainingSamples([group("g", rollout("a", 1), masked)], grpo);
    expect(samples[0]?.advantages[1]).toBe(0.5);
  });

  it("counts a rollout without trained tokens in the baseline, not in R", () => {
    const silent = rollout("b", 0, { samples: [] });
    const { samples, trainedRollouts } = buildTrainingSamples(
      [group("g", rollout("a", 1), silent)],
      grpo,
    );
    expect(trainedRollouts).toBe(1);
    expect(samples[0]?.advantages[1]).toBe(0.5);
    expect(samples[0]?.weights[1]).toBeCloseTo(1 / 3, 6);
  });

  it("drops groups without signal when asked, before R is taken", () => {
    const groups = [
      group("g", rollout("a", 1), rollout("b", 0)),
      group("h", rollout("c", 1), rollout("d", 1)),
    ];
    expect(buildTrainingSamples(groups, grpo)).toMatchObject({
      trainedRollouts: 4,
      zeroSignalGroups: 1,
      droppedGroups: 0,
    });
    const dropped = buildTrainingSamples(groups, { ...grpo, dropsZeroSignalGroups: true });
    expect(dropped).toMatchObject({ trainedRollouts: 2, zeroSignalGroups: 1, droppedGroups: 1 });
    expect(dropped.samples.map((sample) => sample.groupId)).toEqual(["g", "g"]);
    expect(dropped.samples[0]?.weights[1]).toBeCloseTo(1 / 6, 6);
  });

  it("gives each turn its own return, by time and not by place in a row", () => {
    // Turns begin at 10 and 20 ms: b is rewarded at its first turn, a at its second.
    const credit = { kind: "per-turn", discount: 0 } as const;
    const { samples } = buildTrainingSamples(
      [
        group(
          "g",
          { ...brokenRollout("a", 0), rewardEvents: [{ atMs: 25, value: 1 }] },
          { ...rollout("b", 0), rewardEvents: [{ atMs: 15, value: 1 }] },
        ),
      ],
      { advantages: { estimator: "dr-grpo", credit } },
    );
    const byCall = samples.flatMap((sample) =>
      sample.callIds.map((id, i) => [
        sample.rolloutId,
        id,
        [...sample.advantages].filter((x) => x !== 0)[i],
      ]),
    );
    expect(byCall).toEqual([
      ["a", "c1", -0.5],
      ["a", "c2", 0.5],
      ["b", "c1", 0.5],
      ["b", "c2", -0.5],
    ]);
  });

  it("takes GiGPO's states from what is new in the prompt, or from the adapter", () => {
    const gigpo = { estimator: "gigpo", normalises: false, discount: 1 } as const;
    const groups = [group("g", rollout("a", 1), rollout("b", 0))];
    const { samples } = buildTrainingSamples(groups, { advantages: gigpo });
    // Both turns meet states of the other rollout: episode ± 1/2, each step ± 1/2.
    expect([...(samples[0]?.advantages ?? [])]).toEqual([0, 1, 0, 1, 1]);
    const anchors = new Map([["c2", "only here"]]);
    const apart = buildTrainingSamples(
      [group("g", rollout("a", 1, { anchors }), rollout("b", 0))],
      {
        advantages: gigpo,
      },
    );
    expect([...(apart.samples[0]?.advantages ?? [])]).toEqual([0, 1, 0, 0.5, 0.5]);
  });

  it("offers verl's row-dependent estimators under their names", () => {
    const settings = { advantages: { estimator: "verl-grpo-no-std" } } as const;
    const { samples } = buildTrainingSamples(
      [group("g", brokenRollout("a", 1), rollout("b", 0))],
      settings,
    );
    // Three rows count as three members: mean 2/3.
    const values = samples.map((sample) => Math.max(...sample.advantages.map(Math.abs)));
    values.forEach((value, i) => expect(value).toBeCloseTo([1 / 3, 1 / 3, 2 / 3][i] as number, 6));
  });
});
