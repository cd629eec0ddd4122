/** Values of one rollout: one per turn, or a single one for all turns together. */
export type RolloutValues = readonly number[];

export interface RolloutStatistics {
  readonly count: number;
  readonly mean: number;
  /** Unbiased (n - 1) over rollouts; 0 for fewer than two. */
  readonly variance: number;
  /** No two values differ. */
  readonly isConstant: boolean;
}

/**
 * Mean and variance in which every rollout counts once, however many turns it has: each of its
 * values weighs 1 / turns. With one value per rollout these are the ordinary sample statistics.
 */
export function rolloutStatistics(rollouts: readonly RolloutValues[]): RolloutStatistics {
  const count = rollouts.length;
  if (count === 0) return { count, mean: 0, variance: 0, isConstant: true };
  const first = rollouts[0]?.[0];
  const isConstant = rollouts.every((values) => values.every((value) => value === first));
  const mean = meanOf(rollouts.map(meanOf));
  if (isConstant || count < 2) return { count, mean, variance: 0, isConstant };
  const deviations = rollouts.map((values) => meanOf(values.map((value) => (value - mean) ** 2)));
  const variance = deviations.reduce((sum, one) => sum + one, 0) / (count - 1);
  return { count, mean, variance, isConstant };
}

export function meanOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
