import { bitSink, bitSource, endOfBits, finishBits, putBits, takeBits } from "./bit-stream.ts";

/** Doubles hold every whole number up to here. */
const maxNumber = 2 ** 53;

/**
 * How ids from 0 to `largest` are grouped: as many as make one number of at most 53 bits when they
 * are read as its digits to the base `largest + 1`, the first id lowest. Whole bits per group
 * instead of per id: 151,936 different ids take 17.33 bits each, not 18.
 */
export interface IdGrouping {
  readonly largest: number;
  readonly groupSize: number;
  /** Bits of a group of so many ids, up to `groupSize`. */
  readonly bitsBySize: readonly number[];
}

/** For ids up to `largest`, a whole number from 1 to 2^32 - 1. */
export function idGrouping(largest: number): IdGrouping {
  const radix = largest + 1;
  const bitsBySize = [0];
  for (let states = radix; states <= maxNumber; states *= radix) bitsBySize.push(bitsFor(states));
  return { largest, groupSize: bitsBySize.length - 1, bitsBySize };
}

/** Whole bits that tell so many states apart; `states` is at most 2^53. */
function bitsFor(states: number): number {
  const last = states - 1;
  const high = Math.floor(last / 2 ** 32);
  return high > 0 ? 64 - Math.clz32(high) : 32 - Math.clz32(last);
}

/** Bits that `packRadix` makes of so many ids. */
export function groupedBits(count: number, { groupSize, bitsBySize }: IdGrouping): number {
  const rest = count % groupSize;
  const groups = (count - rest) / groupSize;
  return groups * (bitsBySize[groupSize] as number) + (bitsBySize[rest] as number);
}

/** Ids, read as unsigned and none above the largest, in groups. */
export function packRadix(ids: Int32Array, grouping: IdGrouping): Uint8Array {
  const { groupSize, bitsBySize } = grouping;
  const radix = grouping.largest + 1;
  const sink = bitSink(groupedBits(ids.length, grouping));
  for (let start = 0; start < ids.length; start += groupSize) {
    const end = Math.min(start + groupSize, ids.length);
    let number = 0;
    for (let i = end - 1; i >= start; i -= 1) number = number * radix + ((ids[i] as number) >>> 0);
    const bits = bitsBySize[end - start] as number;
    putBits(sink, number | 0, Math.min(bits, 32));
    if (bits > 32) putBits(sink, Math.floor(number / 2 ** 32), bits - 32);
  }
  return finishBits(sink);
}

/** The inverse. Throws a RangeError when the bytes are not what `packRadix` makes. */
export function unpackRadix(bytes: Uint8Array, count: number, grouping: IdGrouping): Int32Array {
  const { largest, groupSize, bitsBySize } = grouping;
  const radix = largest + 1;
  if (bytes.length !== Math.ceil(groupedBits(count, grouping) / 8))
    throw new RangeError(`${bytes.length} bytes do not hold ${count} ids of at most ${largest}`);
  const ids = new Int32Array(count);
  const source = bitSource(bytes);
  for (let start = 0; start < count; start += groupSize) {
    const end = Math.min(start + groupSize, count);
    const bits = bitsBySize[end - start] as number;
    let number = takeBits(source, Math.min(bits, 32)) >>> 0;
    if (bits > 32) number += takeBits(source, bits - 32) * 2 ** 32;
    for (let i = start; i < end; i += 1) {
      let next = Math.floor(number / radix);
      // The quotient may have been rounded up to a whole number.
      if (next * radix > number) next -= 1;
      ids[i] = number - next * radix;
      number = next;
    }
    if (number > 0) throw new RangeError(`an id is more than ${largest}`);
  }
  endOfBits(source);
  return ids;
}
