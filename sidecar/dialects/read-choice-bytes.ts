import { isNullAt, type MemberRange, skipValue, walkArray, walkObject } from "./json-scan.ts";
import { type JsonRecord, type JsonValue, parseJson } from "./json-value.ts";

/** What one `choices[]` entry says, read without parsing the whole chunk or answer. */
export interface ChoiceBytes {
  /** Undefined where the engine named none. */
  readonly index: number | undefined;
  readonly promptIds: number[] | undefined;
  readonly ids: readonly number[] | undefined;
  readonly logprobs: readonly number[] | undefined;
  /** The other members that count, parsed. */
  readonly rest: JsonRecord;
}

const COMMA = 0x2c;
const CLOSE_BRACKET = 0x5d;
const ZERO = 0x30;
const NINE = 0x39;
const SPACE = 0x20;
const jsonNumber = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/**
 * Ids and logprobs straight from the bytes, because making objects of every chunk costs more than
 * relaying it. Undefined for whatever is not in the plain form of a chat chunk (SGLang's pairs, a
 * logprob that is no number, a member twice): the caller then parses all of it.
 */
export function readChoiceBytes(
  bytes: Buffer,
  members: readonly MemberRange[],
  textKeys: ReadonlySet<string>,
): ChoiceBytes | undefined {
  let index: number | undefined;
  let promptIds: number[] | undefined;
  let ids: number[] | undefined;
  let logprobs: number[] | undefined;
  let rest: Record<string, JsonValue> = nothing;
  for (let at = 0; at < members.length; at += 1) {
    const { key, value } = members[at] as MemberRange;
    if (hasKeyFrom(members, at + 1, key)) return undefined;
    if (isNullAt(bytes, value)) continue;
    if (key === "index") {
      index = readInteger(bytes, value.start, value.end);
      if (index === undefined) return undefined;
    } else if (key === "token_ids") {
      ids = readIds(bytes, value.start, value.end);
      if (ids === undefined) return undefined;
    } else if (key === "logprobs") {
      logprobs = readLogprobs(bytes, value.start);
      if (logprobs === undefined) return undefined;
    } else if (key === "prompt_token_ids") {
      promptIds = readIds(bytes, value.start, value.end);
      if (promptIds === undefined) return undefined;
    } else if (isRead.has(key) || textKeys.has(key)) {
      const parsed = parseJson(bytes.toString("utf8", value.start, value.end));
      if (parsed === undefined) return undefined;
      if (rest === nothing) rest = {};
      rest[key] = parsed;
    } else if (key === "meta_info") return undefined;
  }
  return { index, promptIds, ids, logprobs, rest };
}

const nothing: Record<string, JsonValue> = {};
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

/** `{"content": [{"logprob": -0.5, …}, …]}`; every entry must have exactly one number. */
function readLogprobs(bytes: Buffer, start: number): number[] | undefined {
  let logprobs: number[] | undefined;
  let isPlain = true;
  const close = walkObject(bytes, start, (key, _keyStart, value) => {
    if (key !== "content") return skipValue(bytes, value);
    if (logprobs !== undefined) isPlain = false;
    const values: number[] = [];
    logprobs = values;
    const end = walkArray(bytes, value, (entry) => {
      const entryEnd = readLogprob(bytes, entry, values);
      if (entryEnd === undefined) isPlain = false;
      return entryEnd ?? entry;
    });
    return end === undefined ? value : end + 1;
  });
  return isPlain && close !== undefined ? logprobs : undefined;
}

/** Returns where the entry ends. */
function readLogprob(bytes: Buffer, entry: number, values: number[]): number | undefined {
  const countBefore = values.length;
  const close = walkObject(bytes, entry, (key, _keyStart, value) => {
    const end = skipValue(bytes, value);
    if (key === "logprob") {
      const text = bytes.toString("latin1", value, end);
      if (!jsonNumber.test(text)) return value;
      values.push(Number(text));
    }
    return end;
  });
  return close === undefined || values.length !== countBefore + 1 ? undefined : close + 1;
}

/** Up to 15 digits, none in front that JSON does not allow. */
function readInteger(bytes: Buffer, start: number, end: number): number | undefined {
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
