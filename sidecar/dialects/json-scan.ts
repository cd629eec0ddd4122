/**
 * A tokenizer over JSON bytes for edits that must leave every other byte alone. It finds where
 * values start and end and does not validate: what it cannot follow gives `undefined`, and the
 * caller then forwards the bytes as they came.
 */

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;

/** `bytes[start, end)`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

export interface MemberRange {
  readonly key: string;
  /** From the key's quote to the end of the value. */
  readonly start: number;
  readonly value: ByteRange;
}

export interface ObjectScan {
  readonly members: readonly MemberRange[];
  /** Position of the closing brace. */
  readonly close: number;
}

/** Visits a member and returns where its value ends (`skipValue` for one that it does not read). */
export type MemberVisitor = (key: string, keyStart: number, valueStart: number) => number;

/**
 * Walks the members of the object that starts at `from` (whitespace before it allowed), in order;
 * returns the position of its closing brace. Each byte is looked at once: a visitor that reads a
 * value goes on from there.
 */
export function walkObject(bytes: Buffer, from: number, visit: MemberVisitor): number | undefined {
  let at = firstMember(bytes, from);
  while (at > 0) {
    const keyEnd = skipString(bytes, at);
    const start = valueAfterKey(bytes, keyEnd);
    if (start === 0) return undefined;
    const end = visit(readKey(bytes, at, keyEnd), at, start);
    if (end <= start) return undefined;
    at = nextMember(bytes, end);
  }
  return at === 0 ? undefined : -at;
}

/**
 * Where the first key of the object at `from` stands (whitespace before it allowed); for an empty
 * object its closing brace, negated; 0 where neither is. For loops that cannot afford a visitor:
 * `skipString` gives the end of a key, `valueAfterKey` its value, `nextMember` the next key.
 */
export function firstMember(bytes: Buffer, from: number): number {
  const open = skipWhitespace(bytes, from);
  if (bytes[open] !== OPEN_BRACE) return 0;
  const at = skipWhitespace(bytes, open + 1);
  const byte = bytes[at];
  return byte === QUOTE ? at : byte === CLOSE_BRACE ? -at : 0;
}

/** The same after the value that ends at `valueEnd`. */
export function nextMember(bytes: Buffer, valueEnd: number): number {
  const at = skipWhitespace(bytes, valueEnd);
  const byte = bytes[at];
  if (byte === CLOSE_BRACE) return -at;
  if (byte !== COMMA) return 0;
  const key = skipWhitespace(bytes, at + 1);
  return bytes[key] === QUOTE ? key : 0;
}

/** 0 where no colon follows the key. */
export function valueAfterKey(bytes: Buffer, keyEnd: number): number {
  const colon = skipWhitespace(bytes, keyEnd);
  return bytes[colon] === COLON ? skipWhitespace(bytes, colon + 1) : 0;
}

/** The same for the elements of an array; returns the position of its closing bracket. */
export function walkArray(
  bytes: Buffer,
  from: number,
  visit: (start: number) => number,
): number | undefined {
  let position = skipWhitespace(bytes, from);
  if (bytes[position] !== OPEN_BRACKET) return undefined;
  position = skipWhitespace(bytes, position + 1);
  if (bytes[position] === CLOSE_BRACKET) return position;
  for (;;) {
    const end = visit(position);
    if (end <= position) return undefined;
    position = skipWhitespace(bytes, end);
    if (bytes[position] === CLOSE_BRACKET) return position;
    if (bytes[position] !== COMMA) return undefined;
    position = skipWhitespace(bytes, position + 1);
  }
}

/** Members of the object that starts at `from`, in order. */
export function scanObject(bytes: Buffer, from: number): ObjectScan | undefined {
  const members: MemberRange[] = [];
  const close = walkObject(bytes, from, (key, keyStart, start) => {
    const end = skipValue(bytes, start);
    members.push({ key, start: keyStart, value: { start, end } });
    return end;
  });
  return close === undefined ? undefined : { members, close };
}

/** Elements of the array that starts at `from`, in order. */
export function scanArray(bytes: Buffer, from: number): readonly ByteRange[] | undefined {
  const elements: ByteRange[] = [];
  const close = walkArray(bytes, from, (start) => {
    const end = skipValue(bytes, start);
    elements.push({ start, end });
    return end;
  });
  return close === undefined ? undefined : elements;
}

/** The value of the last member with this key, as JSON.parse would see it. */
export function lastMember(object: ObjectScan, key: string): MemberRange | undefined {
  return object.members.findLast((member) => member.key === key);
}

export function isNullAt(bytes: Buffer, range: ByteRange): boolean {
  return range.end - range.start === 4 && bytes[range.start] === 0x6e;
}

export function isTrueAt(bytes: Buffer, range: ByteRange): boolean {
  return range.end - range.start === 4 && bytes[range.start] === 0x74;
}

export function skipWhitespace(bytes: Buffer, from: number): number {
  let position = from;
  for (;;) {
    const byte = bytes[position] as number;
    // Nearly every time.
    if (byte > 0x20) return position;
    if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return position;
    position += 1;
  }
}

/** How far a string is walked byte by byte before a native search: a call costs about as much. */
const shortRun = 48;

/** End of the string whose opening quote is at `from`; the end of the bytes when it has none. */
export function skipString(bytes: Buffer, from: number): number {
  const { length } = bytes;
  let position = from + 1;
  while (position < length) {
    const limit = Math.min(length, position + shortRun);
    while (position < limit) {
      const byte = bytes[position];
      if (byte === QUOTE) return position + 1;
      position += byte === BACKSLASH ? 2 : 1;
    }
    // Here `position` is not escaped: a quote ends the string unless the backslashes since then
    // before it are odd in number. After an escaped one, others are likely near: walk again.
    const quote = bytes.indexOf(QUOTE, position);
    if (quote === -1) return bytes.length;
    let backslashes = 0;
    while (quote - backslashes > position && bytes[quote - 1 - backslashes] === BACKSLASH) {
      backslashes += 1;
    }
    position = quote + 1;
    if (backslashes % 2 === 0) return position;
  }
  return bytes.length;
}

/** End of the value that starts at `from`; `from` itself where there is none. */
export function skipValue(bytes: Buffer, from: number): number {
  const first = bytes[from];
  if (first === QUOTE) return skipString(bytes, from);
  if (first === OPEN_BRACE || first === OPEN_BRACKET) return skipNested(bytes, from);
  let position = from;
  while (position < bytes.length && !endsScalar(bytes[position] as number)) position += 1;
  return position;
}

/** 1 for what `skipNested` must look at. */
const nesting = new Uint8Array(256);
for (const byte of [QUOTE, OPEN_BRACE, OPEN_BRACKET, CLOSE_BRACE, CLOSE_BRACKET]) nesting[byte] = 1;

/** Brackets are counted, not matched: no recursion, so depth costs nothing. */
function skipNested(bytes: Buffer, from: number): number {
  const { length } = bytes;
  let depth = 0;
  let position = from;
  while (position < length) {
    const byte = bytes[position] as number;
    if (nesting[byte] === 0) {
      position += 1;
      continue;
    }
    if (byte === QUOTE) {
      position = skipString(bytes, position);
      continue;
    }
    position += 1;
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth += 1;
    else {
      depth -= 1;
      if (depth === 0) return position;
    }
  }
  return from;
}

function endsScalar(byte: number): boolean {
  return byte === COMMA || byte === CLOSE_BRACE || byte === CLOSE_BRACKET || byte <= 0x20;
}

/**
 * Member names of completions, so that reading a chunk makes no new string for each. By length,
 * first and last byte, which tell these apart.
 */
const knownKeys: ReadonlyMap<number, string> = new Map(
  [
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "index",
    "delta",
    "message",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "matched_stop",
    "text",
    "token_ids",
    "prompt_token_ids",
    "policy_versions",
    "weight_versions",
    "meta_info",
    "system_fingerprint",
    "service_tier",
    "kv_transfer_params",
  ].map((key) => [keyCode(key.length, key.charCodeAt(0), key.charCodeAt(key.length - 1)), key]),
);

function keyCode(length: number, first: number, last: number): number {
  return (length << 16) | (first << 8) | last;
}

/** The key between its quotes, `bytes[start, end)`. */
export function readKey(bytes: Buffer, start: number, end: number): string {
  const length = end - start - 2;
  const code = keyCode(length, bytes[start + 1] ?? 0, bytes[end - 2] ?? 0);
  const known = knownKeys.get(code);
  if (known?.length === length && isKeyAt(bytes, start + 1, known)) return known;
  const text = bytes.toString("utf8", start + 1, end - 1);
  if (!text.includes("\\")) return text;
  try {
    return JSON.parse(`"${text}"`) as string;
  } catch {
    return text;
  }
}

function isKeyAt(bytes: Buffer, start: number, key: string): boolean {
  for (let index = 0; index < key.length; index += 1) {
    if (bytes[start + index] !== key.charCodeAt(index)) return false;
  }
  return true;
}
