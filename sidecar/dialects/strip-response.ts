import { applyCuts, type ByteCut, removalCuts } from "./byte-cuts.ts";
import type { ClientAsked } from "./dialect.ts";
import {
  type ByteRange,
  isNullAt,
  lastMember,
  type MemberRange,
  scanArray,
  scanObject,
} from "./json-scan.ts";

/** Members that only the capture asks for, whichever engine answers. */
const captureMembers = new Set([
  "prompt_token_ids",
  "token_ids",
  "policy_versions",
  "weight_versions",
  "meta_info",
]);

/** The whole object is there only because the capture asked for it: not for the harness. */
export const droppedChunk = Symbol("dropped chunk");

/**
 * Removes what the capture added from a chat or text completion (or one chunk of its stream),
 * given as JSON bytes; every other byte stays, key order included.
 * Logprobs that the harness did not ask for become null, as an engine reports "none".
 * `droppedChunk` for the usage-only chunk of a harness that did not ask for usage.
 * Bytes that cannot be followed come back as they are: better a member too many than a lost answer.
 */
export function stripResponse(
  bytes: Buffer,
  asked: ClientAsked,
  isChunk: boolean,
): Buffer | typeof droppedChunk {
  const cuts = stripCuts(bytes, 0, asked, isChunk);
  return cuts === droppedChunk ? cuts : applyCuts(bytes, cuts);
}

/** The same for JSON that starts at `from` inside other bytes: what to cut out of them. */
export function stripCuts(
  bytes: Buffer,
  from: number,
  asked: ClientAsked,
  isChunk: boolean,
): readonly ByteCut[] | typeof droppedChunk {
  const root = scanObject(bytes, from);
  if (root === undefined) return [];
  const choices = lastMember(root, "choices");
  const usage = lastMember(root, "usage");
  const elements = choices === undefined ? undefined : scanArray(bytes, choices.value.start);
  const hidesUsage = isChunk && !asked.usage && usage !== undefined;
  if (hidesUsage && elements?.length === 0 && !isNullAt(bytes, usage.value)) return droppedChunk;
  const cuts: ByteCut[] = removalCuts(
    root.members,
    (member) =>
      (!asked.tokenIds && captureMembers.has(member.key)) ||
      (hidesUsage && member.key === "usage" && isNullAt(bytes, member.value)),
  );
  for (const element of elements ?? []) cutChoice(bytes, element, asked, cuts);
  return cuts;
}

function cutChoice(bytes: Buffer, choice: ByteRange, asked: ClientAsked, cuts: ByteCut[]): void {
  const object = scanObject(bytes, choice.start);
  if (object === undefined) return;
  if (!asked.tokenIds) {
    cuts.push(...removalCuts(object.members, (member) => captureMembers.has(member.key)));
  }
  if (asked.logprobs) return;
  for (const member of object.members) {
    if (hasLogprobs(bytes, member)) cuts.push({ ...member.value, text: "null" });
  }
}

function hasLogprobs(bytes: Buffer, member: MemberRange): boolean {
  return member.key === "logprobs" && !isNullAt(bytes, member.value);
}
