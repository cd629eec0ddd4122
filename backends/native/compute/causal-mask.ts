/** [G·T, T]: 0 where query t sees key s ≤ t, else -∞; the rows repeat for each query of a group. */
export function causalMask(group: number, length: number): Float32Array {
  const mask = new Float32Array(group * length * length);
  for (let row = 0; row < group * length; row++) {
    const start = row * length;
    mask.fill(Number.NEGATIVE_INFINITY, start + (row % length) + 1, start + length);
  }
  return mask;
}
