/** What two texts have in common at their ends; the two never overlap in either text. */
export interface SharedEnds {
  readonly prefixBytes: number;
  readonly suffixBytes: number;
}

export function sharedEnds(base: Uint8Array, text: Uint8Array): SharedEnds {
  const limit = Math.min(base.length, text.length);
  let prefixBytes = 0;
  while (prefixBytes < limit && base[prefixBytes] === text[prefixBytes]) prefixBytes += 1;
  let suffixBytes = 0;
  while (
    suffixBytes < limit - prefixBytes &&
    base[base.length - 1 - suffixBytes] === text[text.length - 1 - suffixBytes]
  )
    suffixBytes += 1;
  return { prefixBytes, suffixBytes };
}
