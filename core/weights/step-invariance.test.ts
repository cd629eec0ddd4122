import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AdvantageSettings } from "../advantages/step-advantages.ts";
import { assembleAttempt } from "../assembly/assemble-attempt.ts";
import type { AssembledSample } from "../assembly/assembled-sample.ts";
import { seededRandom } from "../assembly/testing/random.ts";
import { randomAttempt, wildHabits } from "../assembly/testing/random-attempt.ts";
import { splitRows } from "../assembly/testing/split-rows.ts";
import { buildTrainingSamples, type TrainingGroup } from "./build-training-samples.ts";
import type { Weighting } from "./weighting.ts";

const perTurn = { kind: "per-turn", discount: 0.9 } as const;
const estimators: readonly AdvantageSettings[] = [
  { estimator: "grpo" },
  { estimator: "grpo", credit: perTurn },
  { estimator: "trl-grpo" },
  { estimator: "trl-grpo-batch-std" },
  { estimator: "dr-grpo", credit: perTurn },
  { estimator: "rloo" },
  { estimator: "rloo", credit: perTurn },
  { estimator: "reinforce-plus-plus" },
  { estimator: "reinforce-plus-plus", credit: perTurn },
  { estimator: "reinforce-plus-plus-baseline" },
  { estimator: "gigpo", discount: 0.9 },
];
const weightings: readonly Weighting[] = [
  { kind: "rollout-mean" },
  { kind: "token-mean" },
  { kind: "call-mean" },
  { kind: "constant-norm", normTokens: 100 },
];
const habits = { ...wildHabits, turns: 8, vocabulary: 4 };

function randomGroups(seed: number): TrainingGroup[] {
  const random = seededRandom(seed);
  return ["g", "h"].map((groupId) => ({
    groupId,
    rollouts: [0, 1, 2].map((i) => {
      const rolloutId = `${groupId}${i}`;
      const { records } = randomAttempt(random.below(1e9), habits);
      const calls = records.map((call) => ({ ...call, rolloutId }));
      const events = [{ atMs: 1000 + random.below(10), value: random.next() }];
      const reward = random.chance(0.2) ? undefined : random.below(3);
      return { rolloutId, reward, rewardEvents: events, samples: assembleAttempt(calls).samples };
    }),
  }));
}

/** Advantage and weight of each trained token, by rollout, attempt, call and position. */
function byToken(
  groups: readonly TrainingGroup[],
  advantages: AdvantageSettings,
  weighting: Weighting,
) {
  const { samples } = buildTrainingSamples(groups, { advantages, weighting });
  const spansOf = new Map<string, AssembledSample["spans"]>();
  for (const sample of groups.flatMap((g) => g.rollouts.flatMap((r) => r.samples))) {
    spansOf.set(rowKey(sample), sample.spans);
  }
  const tokens = new Map<string, string>();
  for (const sample of samples) {
    for (const { call, start, end } of spansOf.get(rowKey(sample)) ?? []) {
      for (let at = start; at < end; at++) {
        const key = `${sample.rolloutId}/${call.callId}/${at}`;
        tokens.set(key, `${sample.advantages[at]} ${sample.weights[at]}`);
      }
    }
  }
  return tokens;
}

/** Rows of one step differ in what they train. */
function rowKey(row: Pick<AssembledSample, "rolloutId" | "lossMask" | "callIds">): string {
  return `${row.rolloutId} ${row.callIds.join()} ${row.lossMask.join("")}`;
}

describe("invariant 4: advantages and weights do not depend on how rollouts are cut into rows", () => {
  it.each(estimators.map((one) => [JSON.stringify(one), one] as const))("%s", (_, estimator) => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 1e6 }),
        fc.constantFrom(...weightings),
        (seed, weighting) => {
          const groups = randomGroups(seed);
          const random = seededRandom(seed);
          const split = groups.map((group) => ({
            ...group,
            rollouts: group.rollouts.map((rollout) => ({
              ...rollout,
              samples: splitRows(rollout.samples, random),
            })),
          }));
          const expected = byToken(groups, estimator, weighting);
          expect(expected.size).toBeGreaterThan(0);
          expect(byToken(split, estimator, weighting)).toEqual(expected);
        },
      ),
      { numRuns: 10 },
    );
  });
});
