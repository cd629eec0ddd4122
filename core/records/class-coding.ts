import { bitSink, bitSource, endOfBits, finishBits, putBits, takeBits } from "./bit-stream.ts";
import {
  buildPrefixCode,
  maxSymbolCount,
  type PrefixCode,
  prefixCodeBits,
  readPrefixCode,
  takeSymbol,
  writePrefixCode,
} from "./prefix-code.ts";

/**
 * 32-bit values as a class, which is prefix-coded, and the bits that tell the values of a class
 * apart, which are written as they are. Ids: the class is the bit length, so that small ids, which
 * are the frequent ones, are short. Floats: the class is sign and exponent; the mantissa of a
 * logprob is as good as random.
 */
export interface ClassCode {
  readonly code: PrefixCode;
  /** Of the code and all values. */
  readonly bits: number;
}

/** Values are read as unsigned; there must be one. */
export function idClassCode(ids: Int32Array): ClassCode {
  const counts = new Uint32Array(34);
  for (let i = 0; i < ids.length; i += 1) {
    const length = 32 - Math.clz32(ids[i] as number);
    counts[length] = (counts[length] as number) + 1;
  }
  const code = buildPrefixCode(counts);
  let bits = prefixCodeBits(code);
  for (const length of code.used)
    bits += (counts[length] as number) * ((code.lengths[length] as number) + idRestBits(length));
  return { code, bits };
}

/** Values are the bits of floats; there must be one. */
export function floatClassCode(floats: Int32Array): ClassCode {
  const counts = new Uint32Array(maxSymbolCount);
  for (let i = 0; i < floats.length; i += 1) {
    const symbol = (floats[i] as number) >>> mantissaBits;
    counts[symbol] = (counts[symbol] as number) + 1;
  }
  const code = buildPrefixCode(counts);
  let bits = prefixCodeBits(code) + mantissaBits * floats.length;
  for (const symbol of code.used)
    bits += (counts[symbol] as number) * (code.lengths[symbol] as number);
  return { code, bits };
}

const mantissaBits = 23;
const mantissaMask = (1 << mantissaBits) - 1;

/** The highest bit of an id is known from its length. */
function idRestBits(length: number): number {
  return length === 0 ? 0 : length - 1;
}

export function packIdClasses(ids: Int32Array, { code, bits }: ClassCode): Uint8Array {
  const sink = bitSink(bits);
  writePrefixCode(sink, code);
  for (let i = 0; i < ids.length; i += 1) {
    const id = ids[i] as number;
    const length = 32 - Math.clz32(id);
    putBits(sink, code.codes[length] as number, code.lengths[length] as number);
    const rest = idRestBits(length);
    putBits(sink, id & ~(-1 << rest), rest);
  }
  return finishBits(sink);
}

export function packFloatClasses(floats: Int32Array, { code, bits }: ClassCode): Uint8Array {
  const sink = bitSink(bits);
  writePrefixCode(sink, code);
  for (let i = 0; i < floats.length; i += 1) {
    const float = floats[i] as number;
    const symbol = float >>> mantissaBits;
    putBits(sink, code.codes[symbol] as number, code.lengths[symbol] as number);
    putBits(sink, float & mantissaMask, mantissaBits);
  }
  return finishBits(sink);
}

/** Throws a RangeError when the bytes are not what `packIdClasses` makes of so many ids. */
export function unpackIdClasses(bytes: Uint8Array, count: number): Int32Array {
  const ids = valuesFor(bytes, count);
  const source = bitSource(bytes);
  const decoder = readPrefixCode(source);
  for (let i = 0; i < count; i += 1) {
    const length = takeSymbol(source, decoder);
    if (length > 32) throw new RangeError(`an id of ${length} bits`);
    const rest = idRestBits(length);
    ids[i] = length === 0 ? 0 : (1 << rest) | takeBits(source, rest);
  }
  endOfBits(source);
  return ids;
}

/** Throws a RangeError when the bytes are not what `packFloatClasses` makes of so many floats. */
export function unpackFloatClasses(bytes: Uint8Array, count: number): Int32Array {
  const floats = valuesFor(bytes, count);
  const source = bitSource(bytes);
  const decoder = readPrefixCode(source);
  for (let i = 0; i < count; i += 1) {
    const symbol = takeSymbol(source, decoder);
    floats[i] = (symbol << mantissaBits) | takeBits(source, mantissaBits);
  }
  endOfBits(source);
  return floats;
}

/** A value takes a bit at least: a bound on what forged bytes can ask for. */
function valuesFor(bytes: Uint8Array, count: number): Int32Array {
  if (count > 8 * bytes.length)
    throw new RangeError(`${bytes.length} bytes do not hold ${count} values`);
  return new Int32Array(count);
}
