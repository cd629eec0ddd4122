import type { ChoiceScan } from "./chunk-scan.ts";
import { isNullAt, type MemberRange } from "./json-scan.ts";
import { asCount, type JsonRecord, type JsonValue, parseJson } from "./json-value.ts";

/** What one `choices[]` entry says, read without parsing the whole chunk or answer. */
export interface ChoiceBytes {
  /** Undefined where the engine named none. */
  readonly index: number | undefined;
  readonly promptIds: number[] | undefined;
  readonly ids: readonly number[] | undefined;
  /** Float32 values. */
  readonly logprobs: readonly number[] | undefined;
  /** The other members that count, parsed. */
  readonly rest: JsonRecord;
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const CLOSE_BRACKET = 0x5d;
const ZERO = 0x30;
const NINE = 0x39;
const SPACE = 0x20;

/**
 * Ids and logprobs straight from the bytes, because making objects of every chunk costs more than
 * relaying it. Undefined for whatever is not in the plain form of a chat chunk (SGLang's pairs, a
 * logprob that is no number, a member twice): the caller then parses all of it.
 */
export function readChoiceBytes(
  bytes: Buffer,
  { members, logprobs: scanned }: ChoiceScan,
  textKeys: ReadonlySet<string>,
): ChoiceBytes | undefined {
  let index: number | undefined;
  let promptIds: number[] | undefined;
  let ids: number[] | undefined;
  let logprobs: readonly number[] | undefined;
  let rest: Record<string, JsonValue> = nothing;
  for (let at = 0; at < members.length; at += 1) {
    const { key, value } = members[at] as MemberRange;
    if (hasKeyFrom(members, at + 1, key)) return undefined;
    if (isNullAt(bytes, value)) continue;
    if (key === "index") {
      index = asCount(readInteger(bytes, value.start, value.end));
      if (index === undefined) return undefined;
    } else if (key === "token_ids") {
      ids = readIds(bytes, value.start, value.end);
      if (ids === undefined) return undefined;
    } else if (key === "logprobs") {
      logprobs = scanned;
      if (logprobs === undefined) return undefined;
    } else if (key === "prompt_token_ids") {
      promptIds = readIds(bytes, value.start, value.end);
      if (promptIds === undefined) return undefined;
    } else if (isRead.has(key) || textKeys.has(key)) {
      const parsed =
        knownReason(bytes, value.start, value.end) ??
        parseJson(bytes.toString("utf8", value.start, value.end));
      if (parsed === undefined) return undefined;
      if (rest === nothing) rest = {};
      rest[key] = parsed;
    } else if (key === "meta_info") return undefined;
  }
  return { index, promptIds, ids, logprobs, rest };
}

const nothing: Record<string, JsonValue> = {};
const reasons = ["stop", "length", "tool_calls"];

/** The finish reasons of nearly every answer: no new string, and nothing to parse. */
function knownReason(bytes: Buffer, start: number, end: number): string | undefined {
  for (const reason of reasons) {
    if (end - start !== reason.length + 2 || bytes[start] !== QUOTE) continue;
    let at = 0;
    while (at < reason.length && bytes[start + 1 + at] === reason.charCodeAt(at)) at += 1;
    if (at === reason.length && bytes[end - 1] === QUOTE) return reason;
  }
  return undefined;
}

/** Members with text, which is read where it is kept. */
export const textKeys = {
  none: new Set<string>(),
  ofChunk: new Set(["delta", "text"]),
  ofAnswer: new Set(["message", "text"]),
} as const;
const isRead: ReadonlySet<string> = new Set([
  "finish_reason",
  "stop_reason",
  "matched_stop",
  "policy_versions",
  "weight_versions",
]);

function hasKeyFrom(members: readonly MemberRange[], from: number, key: string): boolean {
  for (let at = from; at < members.length; at += 1) {
    if ((members[at] as MemberRange).key === key) return true;
  }
  return false;
}

/** `[1, 2]`, of plain decimal numbers only. */
export function readIds(bytes: Buffer, start: number, end: number): number[] | undefined {
  const ids: number[] = [];
  let at = skipSpaces(bytes, start + 1);
  if (bytes[at] === CLOSE_BRACKET) return at === end - 1 ? ids : undefined;
  while (at < end) {
    const from = at;
    while (at < end && isDigit(bytes[at])) at += 1;
    const id = readInteger(bytes, from, at);
    if (id === undefined) return undefined;
    ids.push(id);
    at = skipSpaces(bytes, at);
    if (bytes[at] === CLOSE_BRACKET) return at === end - 1 ? ids : undefined;
    if (bytes[at] !== COMMA) return undefined;
    at = skipSpaces(bytes, at + 1);
  }
  return undefined;
}

/** Up to 15 digits, none in front that JSON does not allow. */
export function readInteger(bytes: Buffer, start: number, end: number): number | undefined {
  const length = end - start;
  if (length < 1 || length > 15 || (length > 1 && bytes[start] === ZERO)) return undefined;
  let value = 0;
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at];
    if (!isDigit(byte)) return undefined;
    value = value * 10 + byte - ZERO;
  }
  return value;
}

function isDigit(byte: number | undefined): byte is number {
  return byte !== undefined && byte >= ZERO && byte <= NINE;
}

function skipSpaces(bytes: Buffer, from: number): number {
  let at = from;
  while (bytes[at] === SPACE) at += 1;
  return at;
}
