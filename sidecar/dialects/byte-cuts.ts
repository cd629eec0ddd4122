import type { ByteRange, MemberRange } from "./json-scan.ts";

/** `bytes[start, end)` becomes `text`. */
export interface ByteCut extends ByteRange {
  readonly text: string;
}

/** The bytes with all cuts applied; cuts must not overlap and may come in any order. */
export function applyCuts(bytes: Buffer, cuts: readonly ByteCut[]): Buffer {
  if (cuts.length === 0) return bytes;
  const parts: Buffer[] = [];
  let position = 0;
  for (const cut of [...cuts].sort((a, b) => a.start - b.start || a.end - b.end)) {
    parts.push(bytes.subarray(position, cut.start));
    if (cut.text !== "") parts.push(Buffer.from(cut.text));
    position = cut.end;
  }
  parts.push(bytes.subarray(position));
  return Buffer.concat(parts);
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
