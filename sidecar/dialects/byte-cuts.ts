import type { ByteRange, MemberRange } from "./json-scan.ts";

/** `bytes[start, end)` becomes `text`. */
export interface ByteCut extends ByteRange {
  readonly text: string;
}

/**
 * The bytes with all cuts applied; cuts must not overlap and may come in any order. Positions of
 * the cuts count from `offset`. One copy, because this is done to every chunk of every stream.
 */
export function applyCuts(bytes: Buffer, cuts: readonly ByteCut[], offset = 0): Buffer {
  if (cuts.length === 0) return bytes;
  const sorted = isSorted(cuts)
    ? cuts
    : [...cuts].sort((a, b) => a.start - b.start || a.end - b.end);
  let length = bytes.length;
  for (const cut of sorted) length += byteCount(cut.text) - (cut.end - cut.start);
  const result = Buffer.allocUnsafe(length);
  let from = 0;
  let to = 0;
  for (const cut of sorted) {
    to += copyBytes(bytes, result, to, from, offset + cut.start);
    to += writeText(cut.text, result, to);
    from = offset + cut.end;
  }
  copyBytes(bytes, result, to, from, bytes.length);
  return result;
}

/** Up to this a text is counted and written here, if it is ASCII: a native call costs more. */
const maxShortText = 16;

function byteCount(text: string): number {
  return isShortAscii(text) ? text.length : Buffer.byteLength(text);
}

function writeText(text: string, target: Buffer, to: number): number {
  if (!isShortAscii(text)) return target.write(text, to, "utf8");
  for (let index = 0; index < text.length; index += 1) target[to + index] = text.charCodeAt(index);
  return text.length;
}

function isShortAscii(text: string): boolean {
  if (text.length > maxShortText) return false;
  for (let index = 0; index < text.length; index += 1) {
    if (text.charCodeAt(index) > 0x7f) return false;
  }
  return true;
}

function isSorted(cuts: readonly ByteCut[]): boolean {
  for (let index = 1; index < cuts.length; index += 1) {
    const [a, b] = [cuts[index - 1] as ByteCut, cuts[index] as ByteCut];
    if (a.start > b.start || (a.start === b.start && a.end > b.end)) return false;
  }
  return true;
}

/** Short ranges in a loop: a native copy costs more than it saves. Gives the count. */
function copyBytes(source: Buffer, target: Buffer, to: number, from: number, end: number): number {
  if (end - from > 256) return source.copy(target, to, from, end);
  for (let index = from; index < end; index += 1)
    target[to + index - from] = source[index] as number;
  return Math.max(0, end - from);
}

/** Cuts that remove members of one object together with the commas that they leave over. */
export function removalCuts(
  members: readonly MemberRange[],
  isRemoved: (member: MemberRange) => boolean,
): ByteCut[] {
  const cuts: ByteCut[] = [];
  for (let first = 0; first < members.length; first += 1) {
    const member = members[first] as MemberRange;
    if (!isRemoved(member)) continue;
    let last = first;
    while (last + 1 < members.length && isRemoved(members[last + 1] as MemberRange)) last += 1;
    const end = (members[last] as MemberRange).value.end;
    const next = members[last + 1];
    const before = members[first - 1];
    if (next !== undefined) cuts.push({ start: member.start, end: next.start, text: "" });
    else cuts.push({ start: before?.value.end ?? member.start, end, text: "" });
    first = last;
  }
  return cuts;
}
