import { applyCuts, type ByteCut, removalCuts } from "./byte-cuts.ts";
import type { ChoiceScan, ChunkScan } from "./chunk-scan.ts";
import type { ClientAsked } from "./dialect.ts";
import {
  type ByteRange,
  firstMember,
  isNullAt,
  type MemberRange,
  nextMember,
  readKey,
  skipString,
  skipValue,
  valueAfterKey,
  walkArray,
} from "./json-scan.ts";
import { readLogprobs } from "./read-logprobs.ts";

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
  onScan?: (scan: ChunkScan) => void,
): Buffer | typeof droppedChunk {
  const cuts = stripCuts(bytes, 0, asked, isChunk, onScan);
  return cuts === droppedChunk ? cuts : applyCuts(bytes, cuts);
}

/**
 * The same for JSON that starts at `from` inside other bytes: what to cut out of them. `onScan`
 * gets the places of the members, where they could be followed.
 */
export function stripCuts(
  bytes: Buffer,
  from: number,
  asked: ClientAsked,
  isChunk: boolean,
  onScan?: (scan: ChunkScan) => void,
): readonly ByteCut[] | typeof droppedChunk {
  const cuts: ByteCut[] = [];
  const members: MemberRange[] = [];
  const choices: ChoiceScan[] = [];
  let choiceCount: number | undefined;
  let usage: ByteRange | undefined;
  let at = firstMember(bytes, from);
  while (at > 0) {
    const keyEnd = skipString(bytes, at);
    const start = valueAfterKey(bytes, keyEnd);
    if (start === 0) return [];
    const key = readKey(bytes, at, keyEnd);
    let end: number | undefined;
    if (key === "choices") {
      let count = 0;
      const arrayEnd = walkArray(bytes, start, (element) => {
        count += 1;
        return cutChoice(bytes, element, asked, cuts, choices);
      });
      choiceCount = arrayEnd === undefined ? undefined : count;
      end = arrayEnd === undefined ? undefined : arrayEnd + 1;
    }
    end ??= skipValue(bytes, start);
    if (end <= start) return [];
    if (key === "usage") usage = { start, end };
    members.push({ key, start: at, value: { start, end } });
    at = nextMember(bytes, end);
  }
  if (at === 0) return [];
  const close = -at;
  if (choices.length === choiceCount) onScan?.({ members, choices, close });
  const hidesUsage = isChunk && !asked.usage && usage !== undefined;
  const isNullUsage = usage !== undefined && isNullAt(bytes, usage);
  if (hidesUsage && choiceCount === 0 && !isNullUsage && !hasError(bytes, members))
    return droppedChunk;
  removeMembers(
    members,
    ({ key }) =>
      (!asked.tokenIds && captureMembers.has(key)) ||
      (hidesUsage && isNullUsage && key === "usage"),
    cuts,
  );
  return cuts;
}

/** An error is for the harness, whatever comes with it. */
function hasError(bytes: Buffer, members: readonly MemberRange[]): boolean {
  return members.some(({ key, value }) => key === "error" && !isNullAt(bytes, value));
}

const QUOTE = 0x22;

/** Returns where the choice ends. */
function cutChoice(
  bytes: Buffer,
  from: number,
  asked: ClientAsked,
  cuts: ByteCut[],
  choices: ChoiceScan[],
): number {
  const members: MemberRange[] = [];
  let logprobs: number[] | undefined;
  let isFinished = false;
  let at = firstMember(bytes, from);
  while (at > 0) {
    const keyEnd = skipString(bytes, at);
    const start = valueAfterKey(bytes, keyEnd);
    if (start === 0) break;
    const key = readKey(bytes, at, keyEnd);
    let end = -1;
    if (key === "logprobs") {
      const values: number[] = [];
      end = readLogprobs(bytes, start, values);
      logprobs = end === -1 ? undefined : values;
    }
    if (end === -1) end = skipValue(bytes, start);
    if (end <= start) break;
    const value = { start, end };
    members.push({ key, start: at, value });
    if (key === "logprobs" && !asked.logprobs && !isNullAt(bytes, value)) {
      cuts.push({ start, end, text: "null" });
    }
    if (key === "finish_reason") isFinished = bytes[start] === QUOTE && end - start > 2;
    at = nextMember(bytes, end);
  }
  if (at >= 0) return skipValue(bytes, from);
  choices.push({ members, logprobs, isFinished });
  if (!asked.tokenIds) removeMembers(members, ({ key }) => captureMembers.has(key), cuts);
  return 1 - at;
}

/** Most objects have nothing to remove. */
function removeMembers(
  members: readonly MemberRange[],
  isRemoved: (member: MemberRange) => boolean,
  cuts: ByteCut[],
): void {
  if (members.some(isRemoved)) cuts.push(...removalCuts(members, isRemoved));
}
