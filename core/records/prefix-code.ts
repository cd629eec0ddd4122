import { type BitSink, type BitSource, putBits, takeBits } from "./bit-stream.ts";

/** Symbols are below this. */
export const maxSymbolCount = 512;

const maxCodeBits = 15;
const lengthBits = 4;
const skipBits = 9;

/**
 * A Huffman code in canonical form: only the lengths are written, the codes follow from them.
 * Example: counts `[5, 0, 2, 2]` give the lengths `[1, 0, 2, 2]` and, first bit first, the codes
 * 0, none, 10, 11.
 */
export interface PrefixCode {
  /** The symbols that have a code, in order. */
  readonly used: readonly number[];
  /** In bits, by symbol; 0 without a code. */
  readonly lengths: Uint8Array;
  /** By symbol, as `putBits` takes them: the first bit is the lowest. */
  readonly codes: Uint16Array;
}

/** What `takeSymbol` needs of a code: symbols in the order of their codes, and how many by length. */
export interface PrefixDecoder {
  readonly symbols: readonly number[];
  readonly countByLength: readonly number[];
}

/** The best code of at most 15 bits for symbols that occur so often. Some symbol must occur. */
export function buildPrefixCode(counts: Uint32Array): PrefixCode {
  const used: number[] = [];
  for (let symbol = 0; symbol < counts.length; symbol += 1)
    if (counts[symbol] !== 0) used.push(symbol);
  if (used.length === 1) {
    // A code must be complete, so a lone symbol gets a neighbour that does not occur.
    const only = used[0] as number;
    used.push(only ^ 1);
    if ((only & 1) === 1) used.reverse();
  }
  const lengths = codeLengths(counts, used);
  return { used, lengths, codes: canonicalCodes(used, lengths) };
}

/** Bits that the code itself takes, as `writePrefixCode` writes it. */
export function prefixCodeBits({ used }: PrefixCode): number {
  let bits = used.length * lengthBits;
  let next = 0;
  for (const symbol of used) {
    if (symbol > next) bits += lengthBits + skipBits;
    next = symbol + 1;
  }
  return bits;
}

/**
 * Symbol by symbol from 0 on, four bits: its length; or 0, and then in nine bits how many symbols
 * without a code follow each other. It ends where the code is complete.
 */
export function writePrefixCode(sink: BitSink, { used, lengths }: PrefixCode): void {
  let next = 0;
  for (const symbol of used) {
    if (symbol > next) {
      putBits(sink, 0, lengthBits);
      putBits(sink, symbol - next, skipBits);
    }
    putBits(sink, lengths[symbol] as number, lengthBits);
    next = symbol + 1;
  }
}

/** Throws a RangeError when the bits are not what `writePrefixCode` writes. */
export function readPrefixCode(source: BitSource): PrefixDecoder {
  const byLength: number[][] = Array.from({ length: maxCodeBits + 1 }, () => []);
  const whole = 1 << maxCodeBits;
  let symbol = 0;
  for (let sum = 0; sum < whole; ) {
    const length = takeBits(source, lengthBits);
    if (length === 0) symbol += takeBits(source, skipBits);
    else {
      byLength[length]?.push(symbol);
      symbol += 1;
      sum += whole >>> length;
    }
    if (sum > whole || symbol > maxSymbolCount)
      throw new RangeError("the lengths make no prefix code");
  }
  return { symbols: byLength.flat(), countByLength: byLength.map((symbols) => symbols.length) };
}

/** The next symbol. Throws a RangeError behind the last byte. */
export function takeSymbol(source: BitSource, decoder: PrefixDecoder): number {
  // `code` counts from the first code of its length, `first` is that code's place.
  let code = 0;
  let first = 0;
  for (let length = 1; length <= maxCodeBits; length += 1) {
    code += takeBits(source, 1);
    const count = decoder.countByLength[length] as number;
    if (code < count) return decoder.symbols[first + code] as number;
    code = (code - count) << 1;
    first += count;
  }
  throw new RangeError("no symbol has this code");
}

/** By symbol. Counts are flattened until the longest code is short enough. */
function codeLengths(counts: Uint32Array, used: readonly number[]): Uint8Array {
  const lengths = new Uint8Array(counts.length);
  const order = byCount(counts, used);
  for (let flatten = 0; ; flatten += 1) {
    const weights = order.map((symbol) => Math.max(1, (counts[symbol] as number) >>> flatten));
    const depths = huffmanDepths(weights);
    // The rarest symbol is as deep as any.
    if ((depths[0] as number) > maxCodeBits) continue;
    for (let i = 0; i < order.length; i += 1) lengths[order[i] as number] = depths[i] as number;
    return lengths;
  }
}

/** The rarest first. By insertion: a `sort` of so few costs several times as much. */
function byCount(counts: Uint32Array, used: readonly number[]): number[] {
  const order = used.slice();
  for (let i = 1; i < order.length; i += 1) {
    const symbol = order[i] as number;
    const count = counts[symbol] as number;
    let at = i;
    for (; at > 0 && (counts[order[at - 1] as number] as number) > count; at -= 1)
      order[at] = order[at - 1] as number;
    order[at] = symbol;
  }
  return order;
}

/**
 * Depth of each leaf of the Huffman tree; `weights` rise, and there are two at least. From two
 * queues: the leaves, and the inner nodes as they are made, whose weights rise too.
 */
function huffmanDepths(weights: readonly number[]): number[] {
  const leafCount = weights.length;
  const nodeWeights = weights.slice();
  const parents = weights.slice();
  let leaf = 0;
  let inner = leafCount;
  for (let made = leafCount; made < 2 * leafCount - 1; made += 1) {
    let weight = 0;
    for (let child = 0; child < 2; child += 1) {
      const isLeaf =
        leaf < leafCount &&
        (inner >= made || (nodeWeights[leaf] as number) <= (nodeWeights[inner] as number));
      const node = isLeaf ? leaf++ : inner++;
      weight += nodeWeights[node] as number;
      parents[node] = made;
    }
    nodeWeights.push(weight);
    parents.push(0);
  }
  const depths = nodeWeights;
  depths[2 * leafCount - 2] = 0;
  for (let node = 2 * leafCount - 3; node >= 0; node -= 1)
    depths[node] = (depths[parents[node] as number] as number) + 1;
  return depths;
}

/** Shorter codes first, then by symbol. */
function canonicalCodes(used: readonly number[], lengths: Uint8Array): Uint16Array {
  const codes = new Uint16Array(lengths.length);
  const countByLength = new Uint16Array(maxCodeBits + 1);
  for (const symbol of used) {
    const length = lengths[symbol] as number;
    countByLength[length] = (countByLength[length] as number) + 1;
  }
  const nextByLength = new Uint16Array(maxCodeBits + 1);
  for (let length = 1, next = 0; length <= maxCodeBits; length += 1) {
    nextByLength[length] = next;
    next = (next + (countByLength[length] as number)) << 1;
  }
  for (const symbol of used) {
    const length = lengths[symbol] as number;
    const code = nextByLength[length] as number;
    codes[symbol] = reversed(code, length);
    nextByLength[length] = code + 1;
  }
  return codes;
}

function reversed(code: number, width: number): number {
  let out = 0;
  for (let i = 0; i < width; i += 1) out |= ((code >>> i) & 1) << (width - 1 - i);
  return out;
}
