import {
  firstMember,
  nextMember,
  skipString,
  skipValue,
  valueAfterKey,
  walkArray,
} from "./json-scan.ts";

const PLUS = 0x2b;
const MINUS = 0x2d;
const POINT = 0x2e;
const ZERO = 0x30;
const BACKSLASH = 0x5c;
const OPEN_BRACE = 0x7b;

/**
 * Appends the logprobs of `{"content": [{"logprob": -0.5, …}, …]}` at `start`, as float32 values,
 * and gives where the object ends. -1 for any other form (an entry without exactly one number, a
 * member twice): then `values` may hold some of them. One pass and no objects, because this is
 * most of the bytes that an engine adds to its answer.
 */
export function readLogprobs(bytes: Buffer, start: number, values: number[]): number {
  if (bytes[start] !== OPEN_BRACE) return -1;
  let hasContent = false;
  let at = firstMember(bytes, start);
  while (at > 0) {
    const isContent = isKey(bytes, at, CONTENT);
    const keyEnd = skipString(bytes, at);
    if (!isContent && isEscapedKey(bytes, at, keyEnd, CONTENT)) return -1;
    if (isContent && hasContent) return -1;
    hasContent ||= isContent;
    const value = valueAfterKey(bytes, keyEnd);
    if (value === 0) return -1;
    const end = isContent ? readEntries(bytes, value, values) : skipValue(bytes, value);
    if (end <= value) return -1;
    at = nextMember(bytes, end);
  }
  return at < 0 && hasContent ? 1 - at : -1;
}

function readEntries(bytes: Buffer, start: number, values: number[]): number {
  const close = walkArray(bytes, start, (entry) => readEntry(bytes, entry, values));
  return close === undefined ? -1 : close + 1;
}

function readEntry(bytes: Buffer, start: number, values: number[]): number {
  const countBefore = values.length;
  let at = firstMember(bytes, start);
  while (at > 0) {
    const isLogprob = isKey(bytes, at, LOGPROB);
    const keyEnd = skipString(bytes, at);
    if (!isLogprob && isEscapedKey(bytes, at, keyEnd, LOGPROB)) return -1;
    const value = valueAfterKey(bytes, keyEnd);
    if (value === 0) return -1;
    const end = isLogprob ? numberEnd(bytes, value) : skipValue(bytes, value);
    if (end <= value) return -1;
    if (isLogprob) values.push(float32At(bytes, value, end));
    at = nextMember(bytes, end);
  }
  return at < 0 && values.length === countBefore + 1 ? 1 - at : -1;
}

const CONTENT = Buffer.from('"content"');
const LOGPROB = Buffer.from('"logprob"');

function isKey(bytes: Buffer, start: number, key: Buffer): boolean {
  for (let index = 1; index < key.length; index += 1) {
    if (bytes[start + index] !== key[index]) return false;
  }
  return true;
}

/** Whether a key may be the same one, written with escapes: that is for a full parse to say. */
function isEscapedKey(bytes: Buffer, start: number, end: number, key: Buffer): boolean {
  const first = bytes[start + 1];
  if (first !== BACKSLASH && first !== key[1]) return false;
  for (let at = start + 1; at < end; at += 1) {
    if (bytes[at] === BACKSLASH) return true;
  }
  return false;
}

/** End of the JSON number that starts at `start`; -1 where there is none. */
function numberEnd(bytes: Buffer, start: number): number {
  let at = bytes[start] === MINUS ? start + 1 : start;
  const whole = digitsEnd(bytes, at);
  if (whole === at || (bytes[at] === ZERO && whole > at + 1)) return -1;
  at = whole;
  if (bytes[at] === POINT) {
    const fraction = digitsEnd(bytes, at + 1);
    if (fraction === at + 1) return -1;
    at = fraction;
  }
  if (!isE(bytes[at])) return at;
  const sign = bytes[at + 1];
  const exponent = sign === PLUS || sign === MINUS ? at + 2 : at + 1;
  at = digitsEnd(bytes, exponent);
  return at === exponent ? -1 : at;
}

function digitsEnd(bytes: Buffer, start: number): number {
  let at = start;
  for (;;) {
    const digit = (bytes[at] ?? 0) - ZERO;
    if (digit < 0 || digit > 9) return at;
    at += 1;
  }
}

function isE(byte: number | undefined): boolean {
  return byte === 0x65 || byte === 0x45;
}

/** These are whole in a double. */
const powersOfTen = Array.from({ length: 23 }, (_, power) => Number(`1e${power}`));
/** More than the roundings of `float32At` can be off by together, relative. */
const tolerance = 2 ** -49;

/**
 * The JSON number `bytes[start, end)` rounded to float32: what `Math.fround(Number(text))` gives.
 * Engines write float32 values with 17 digits; as a double this may be off in its last bits, and
 * where that could decide the rounding the text is read in full.
 */
export function float32At(bytes: Buffer, start: number, end: number): number {
  let at = bytes[start] === MINUS ? start + 1 : start;
  let high = 0;
  let low = 0;
  let lowScale = 1;
  let digits = 0;
  let exponent = 0;
  let isFraction = false;
  for (; at < end; at += 1) {
    const byte = bytes[at] as number;
    if (byte === POINT) {
      isFraction = true;
      continue;
    }
    if (isE(byte)) return exactFloat32(bytes, start, end, high, low, lowScale, exponent, at);
    if (digits < 15) {
      high = high * 10 + byte - ZERO;
      if (high > 0) digits += 1;
      if (isFraction) exponent -= 1;
    } else if (digits < 19) {
      low = low * 10 + byte - ZERO;
      lowScale *= 10;
      digits += 1;
      if (isFraction) exponent -= 1;
    } else if (!isFraction) exponent += 1;
  }
  return exactFloat32(bytes, start, end, high, low, lowScale, exponent, -1);
}

function exactFloat32(
  bytes: Buffer,
  start: number,
  end: number,
  high: number,
  low: number,
  lowScale: number,
  scale: number,
  eAt: number,
): number {
  const exponent = eAt === -1 ? scale : scale + exponentAt(bytes, eAt + 1, end);
  const size = Math.abs(exponent);
  if (size <= 44) {
    const near = powersOfTen[Math.min(size, 22)] as number;
    const far = powersOfTen[Math.max(0, size - 22)] as number;
    const mantissa = high * lowScale + low;
    const value = exponent < 0 ? mantissa / near / far : mantissa * near * far;
    const rounded = Math.fround(value * (1 - tolerance));
    if (rounded === Math.fround(value * (1 + tolerance)))
      return bytes[start] === MINUS ? -rounded : rounded;
  }
  return Math.fround(Number(bytes.toString("latin1", start, end)));
}

function exponentAt(bytes: Buffer, start: number, end: number): number {
  const isNegative = bytes[start] === MINUS;
  let value = 0;
  for (let at = isNegative || bytes[start] === PLUS ? start + 1 : start; at < end; at += 1) {
    value = Math.min(9_999, value * 10 + (bytes[at] as number) - ZERO);
  }
  return isNegative ? -value : value;
}
