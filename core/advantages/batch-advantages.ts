import { groupAdvantages } from "./group-advantages.ts";
import { type RolloutValues, rolloutStatistics } from "./rollout-statistics.ts";

/**
 * Estimators that normalise over all rollouts of a step (REINFORCE++, arXiv 2501.03262).
 *
 * - `reinforce-plus-plus`: (v - batch mean) / batch std.
 * - `reinforce-plus-plus-baseline`: the group's mean is taken off first.
 *
 * - `trl-grpo-batch-std`: TRL's `scale_rewards="batch"`, (v - group mean) / (batch std + 1e-4).
 *
 * All use statistics over rollouts, so that a long rollout does not move the baseline of the
 * others; `verlRowAdvantages` offers verl's statistics over tokens.
 */
export type BatchEstimator =
  | "reinforce-plus-plus"
  | "reinforce-plus-plus-baseline"
  | "trl-grpo-batch-std";

/** One group's rollouts; `baseline` are the values that count in statistics. */
export interface GroupValues {
  readonly rollouts: readonly RolloutValues[];
  readonly baseline: readonly RolloutValues[];
}

/**
 * Advantages by group, rollout and turn. With fewer than two rollouts in the baseline, or no
 * difference between them, all are 0. Under the baseline variant a group of one gives its rollout
 * the centred value 0, which then takes part in the batch's statistics like any other.
 */
export function batchAdvantages(
  groups: readonly GroupValues[],
  estimator: BatchEstimator,
): number[][][] {
  if (estimator === "trl-grpo-batch-std") return scaleByBatch(groups);
  const centred = estimator === "reinforce-plus-plus-baseline" ? groups.map(centre) : groups;
  const { count, mean, variance, isConstant } = rolloutStatistics(
    centred.flatMap((group) => group.baseline),
  );
  const scale = count > 1 && !isConstant ? 1 / Math.sqrt(variance + 1e-8) : 0;
  return centred.map((group) =>
    group.rollouts.map((values) => values.map((value) => (value - mean) * scale)),
  );
}

function scaleByBatch(groups: readonly GroupValues[]): number[][][] {
  const { variance } = rolloutStatistics(groups.flatMap((group) => group.baseline));
  const scale = 1 / (Math.sqrt(variance) + 1e-4);
  return groups.map((group) =>
    centre(group).rollouts.map((values) => values.map((value) => value * scale)),
  );
}

function centre({ rollouts, baseline }: GroupValues): GroupValues {
  return {
    rollouts: groupAdvantages(rollouts, { estimator: "dr-grpo" }, baseline),
    baseline: groupAdvantages(baseline, { estimator: "dr-grpo" }),
  };
}
