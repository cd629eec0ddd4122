/** So many pairs are looked at: enough to tell text that repeats itself from text that does not. */
const sampleCount = 2048;
const tableBits = 11;

/**
 * Part of the first pairs of neighbouring ids that occurred before, from 0 to 1; a little less
 * where pairs share a place in the table. Where it is high, a search for repeats pays.
 */
export function repeatedPairShare(ids: Int32Array): number {
  const end = Math.min(ids.length, sampleCount);
  if (end < 2) return 0;
  // Where the pair with this hash was last; 0 for nowhere, since the first pair ends at 1.
  const lastAt = new Uint16Array(1 << tableBits);
  let repeated = 0;
  for (let i = 1; i < end; i += 1) {
    const first = ids[i - 1] as number;
    const second = ids[i] as number;
    const place = Math.imul(Math.imul(first, 0x9e3779b1) ^ second, 0x85ebca6b) >>> (32 - tableBits);
    const at = lastAt[place] as number;
    if (at > 0 && ids[at] === second && ids[at - 1] === first) repeated += 1;
    lastAt[place] = i;
  }
  return repeated / (end - 1);
}
