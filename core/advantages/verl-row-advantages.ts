/**
 * verl's own estimators (`verl.trainer.ppo.core_algos`, 0.9), under their names, for runs that must
 * reproduce verl. They are row-dependent: every row counts as a member of its group, so a rollout
 * that became three rows weighs three times; and a group of one keeps its raw reward.
 */
export type VerlEstimator =
  | "verl-grpo"
  | "verl-grpo-no-std"
  | "verl-rloo"
  | "verl-reinforce-plus-plus"
  | "verl-reinforce-plus-plus-baseline";

/** One row of a batch. */
export interface VerlRow {
  readonly groupId: string;
  /** Length R. */
  readonly tokenRewards: ArrayLike<number>;
  /** Length R; 1 for tokens that the policy sampled. */
  readonly mask: ArrayLike<number>;
}

export interface VerlSettings {
  readonly estimator: VerlEstimator;
  /** Default 1e-6. */
  readonly epsilon?: number;
  /** Discount per token of `verl-reinforce-plus-plus`. Default 1. */
  readonly gamma?: number;
}

/** Advantages in the shape of the rows; 0 where the mask is 0. */
export function verlRowAdvantages(
  rows: readonly VerlRow[],
  settings: VerlSettings,
): Float64Array[] {
  const { estimator, epsilon = 1e-6, gamma = 1 } = settings;
  if (estimator === "verl-reinforce-plus-plus") {
    return whiten(
      rows,
      rows.map((row) => tokenReturns(row, gamma)),
    );
  }
  const scores = rows.map((row) => sum(row.tokenRewards));
  const groups = new Map<string, number[]>();
  rows.forEach((row, i) => {
    groups.set(row.groupId, [...(groups.get(row.groupId) ?? []), scores[i] as number]);
  });
  const centred = rows.map((row, i) =>
    compare(scores[i] as number, groups.get(row.groupId) as number[], estimator, epsilon),
  );
  const spread = rows.map((row, i) =>
    Float64Array.from(row.mask, (mask) => mask * (centred[i] as number)),
  );
  return estimator === "verl-reinforce-plus-plus-baseline" ? whiten(rows, spread) : spread;
}

function compare(
  score: number,
  group: readonly number[],
  estimator: Exclude<VerlEstimator, "verl-reinforce-plus-plus">,
  epsilon: number,
): number {
  const count = group.length;
  if (count === 1) return estimator === "verl-grpo" ? score / (1 + epsilon) : score;
  const mean = sum(group) / count;
  if (estimator === "verl-rloo") return ((score - mean) * count) / (count - 1);
  if (estimator !== "verl-grpo") return score - mean;
  const variance = sum(group.map((one) => (one - mean) ** 2)) / (count - 1);
  return (score - mean) / (Math.sqrt(variance) + epsilon);
}

/** Discounted sum of rewards from each token on; tokens outside the mask pass it through. */
function tokenReturns(row: VerlRow, gamma: number): Float64Array {
  const returns = new Float64Array(row.mask.length);
  let running = 0;
  for (let t = returns.length - 1; t >= 0; t--) {
    const mask = row.mask[t] as number;
    const next = (row.tokenRewards[t] as number) + gamma * running;
    returns[t] = next * mask;
    running = next * mask + running * (1 - mask);
  }
  return returns;
}

/** In verl's denominator of a masked mean; a batch of equal values shows it. */
const MEAN_EPSILON = 1e-8;

/**
 * Zero mean and unit variance (unbiased) over all masked tokens of the batch. verl refuses a batch
 * of a single token; here it gives 0.
 */
function whiten(rows: readonly VerlRow[], values: readonly Float64Array[]): Float64Array[] {
  let count = 0;
  let total = 0;
  forEachMasked(rows, values, (value) => {
    count++;
    total += value;
  });
  const mean = total / (count + MEAN_EPSILON);
  let squares = 0;
  forEachMasked(rows, values, (value) => {
    squares += (value - mean) ** 2;
  });
  const variance = (squares / (count + MEAN_EPSILON)) * (count / (count - 1));
  const scale = count < 2 ? 0 : 1 / Math.sqrt(variance + 1e-8);
  return rows.map((row, i) =>
    Float64Array.from(row.mask, (mask, t) => mask * ((values[i]?.[t] as number) - mean) * scale),
  );
}

function forEachMasked(
  rows: readonly VerlRow[],
  values: readonly Float64Array[],
  visit: (value: number) => void,
): void {
  rows.forEach((row, i) => {
    for (let t = 0; t < row.mask.length; t++)
      if (row.mask[t] === 1) visit(values[i]?.[t] as number);
  });
}

function sum(values: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < values.length; i++) total += values[i] as number;
  return total;
}
