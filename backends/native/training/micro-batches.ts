/**
 * Splits rows into batches of at most `tokenBudget` padded tokens, rows of like length together; a
 * longer row is a batch of its own. Gives row indexes; every row is in exactly one batch. The loss
 * is a sum, so no split changes the gradient.
 */
export function microBatches(lengths: readonly number[], tokenBudget: number): number[][] {
  const order = lengths.map((_, row) => row).sort((a, b) => lengths[b]! - lengths[a]! || a - b);
  const batches: number[][] = [];
  let current: number[] = [];
  for (const row of order) {
    const widest = lengths[current[0] ?? row] as number;
    if (current.length > 0 && (current.length + 1) * widest > tokenBudget) {
      batches.push(current);
      current = [];
    }
    current.push(row);
  }
  if (current.length > 0) batches.push(current);
  return batches;
}
