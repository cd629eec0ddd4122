/**
 * Length of the longest suffix of `text` that is a proper prefix of `tag`: what a stream must hold
 * back because the tag may be completed by the next piece.
 */
export function heldPrefixLength(text: string, tag: string): number {
  for (let n = Math.min(text.length, tag.length - 1); n > 0; n--) {
    if (text.endsWith(tag.slice(0, n))) return n;
  }
  return 0;
}
