import { meanOf, type RolloutValues, rolloutStatistics } from "./rollout-statistics.ts";

/**
 * Estimators that compare the rollouts of one group.
 *
 * - `grpo`: (v - mean) / (std + epsilon), unbiased std (DeepSeekMath, arXiv 2402.03300).
 * - `trl-grpo`: the same with TRL's epsilon, 1e-4.
 * - `dr-grpo`: v - mean (arXiv 2503.20783), GRPO without the division by std.
 * - `rloo`: v - mean of the other rollouts (arXiv 2402.14740).
 */
export type GroupEstimator = "grpo" | "trl-grpo" | "dr-grpo" | "rloo";

export interface GroupAdvantageSettings {
  readonly estimator: GroupEstimator;
  /** Added to the std of `grpo`. Default 1e-6, as in verl. */
  readonly epsilon?: number;
}

/**
 * Advantages of one group, in the shape of its values: one number per turn of each rollout.
 * A group of one and a group whose values are all equal give 0 throughout.
 * `baseline` are the rollouts that count in the statistics; by default all of them.
 */
export function groupAdvantages(
  rollouts: readonly RolloutValues[],
  settings: GroupAdvantageSettings,
  baseline: readonly RolloutValues[] = rollouts,
): number[][] {
  const { count, mean, variance } = rolloutStatistics(baseline);
  if (!hasSignal(baseline)) return rollouts.map((values) => values.map(() => 0));
  const { estimator } = settings;
  switch (estimator) {
    case "trl-grpo":
    case "grpo": {
      const epsilon = estimator === "trl-grpo" ? 1e-4 : (settings.epsilon ?? 1e-6);
      const scale = 1 / (Math.sqrt(variance) + epsilon);
      return rollouts.map((values) => values.map((value) => (value - mean) * scale));
    }
    case "dr-grpo":
      return rollouts.map((values) => values.map((value) => value - mean));
    case "rloo":
      return rollouts.map((values) => {
        const others = baseline.includes(values)
          ? (count * mean - meanOf(values)) / (count - 1)
          : mean;
        return values.map((value) => value - others);
      });
  }
}

/** False where a group can teach nothing: fewer than two rollouts in it, or all values equal. */
export function hasSignal(baseline: readonly RolloutValues[]): boolean {
  return baseline.length > 1 && !rolloutStatistics(baseline).isConstant;
}
