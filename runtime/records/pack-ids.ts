import { constants, deflateRawSync, inflateRawSync } from "node:zlib";
import { unpackBits } from "../../core/records/bit-packing.ts";
import { fromBytePlanes, toBytePlanes } from "../../core/records/byte-planes.ts";
import {
  floatClassCode,
  idClassCode,
  packFloatClasses,
  packIdClasses,
  unpackFloatClasses,
  unpackIdClasses,
} from "../../core/records/class-coding.ts";
import {
  groupedBits,
  idGrouping,
  packRadix,
  unpackRadix,
} from "../../core/records/radix-packing.ts";
import { repeatedPairShare } from "../../core/records/repeated-pairs.ts";
import type { PackedFloats, PackedIds } from "../../proto/gen/outrigger/v1/record_pb.ts";

/** Below this, a code for classes takes more time to make than its bytes are worth. */
const minClassCount = 65;
/** Below this, setting up deflate costs more time than the bytes are worth. */
const minDeflateCount = 128;
/** Above this, deflate would hold up the event loop for tens of milliseconds. */
const maxDeflateCount = 65_536;
/** Up to this, matches are searched too; beyond it only the byte statistics are used: 60 ns a byte. */
const maxMatchCount = 2048;
/** Ids of text that repeats itself as much as this deflate to less than any code for single ids. */
const minRepeatedShare = 0.15;
/** No prompt or response is longer: a bound on what a forged record can make of its bytes. */
const maxCount = 16 * 1024 * 1024;

/** Ids in the form that takes least, where finding it pays. */
export function packIds(ids: Int32Array): PackedIds {
  const packed = packedIds(ids.length);
  const largest = largestOf(ids);
  // Ids that are all 0 take no bytes.
  if (largest === 0) return packed;
  const grouping = idGrouping(largest);
  const classes = ids.length < minClassCount ? undefined : idClassCode(ids);
  const bits = Math.min(groupedBits(ids.length, grouping), classes?.bits ?? Number.MAX_VALUE);
  const deflated = isWorthDeflating(ids) ? deflatedIds(ids, largest) : undefined;
  if (deflated !== undefined && 8 * deflated.length < bits) {
    packed.data = deflated;
    packed.deflatedPlanes = true;
  } else if (classes?.bits === bits) {
    packed.data = packIdClasses(ids, classes);
    packed.classes = true;
  } else {
    packed.data = packRadix(ids, grouping);
    packed.largest = largest;
  }
  return packed;
}

const noBytes = new Uint8Array();

/** Written out: `create` walks descriptors, and every call makes three of these. */
function packedIds(count: number): PackedIds {
  return {
    $typeName: "outrigger.v1.PackedIds",
    count,
    width: 0,
    data: noBytes,
    deflatedPlanes: false,
    largest: 0,
    classes: false,
  };
}

/** Read as unsigned; 0 of none. */
function largestOf(ids: Int32Array): number {
  let largest = 0;
  for (let i = 0; i < ids.length; i += 1) {
    const id = (ids[i] as number) >>> 0;
    if (id > largest) largest = id;
  }
  return largest;
}

function isWorthDeflating(ids: Int32Array): boolean {
  const { length } = ids;
  if (length < minDeflateCount || length > maxDeflateCount) return false;
  return repeatedPairShare(ids) >= minRepeatedShare;
}

/** Planes of bytes; the block size of deflate follows their length, so that each gets its own code. */
function deflatedIds(ids: Int32Array, largest: number): Uint8Array {
  const planeCount = Math.ceil((32 - Math.clz32(largest)) / 8);
  const isShort = ids.length <= maxMatchCount;
  return deflateRawSync(toBytePlanes(ids, planeCount), {
    level: 6,
    memLevel: Math.min(6, Math.max(1, Math.round(Math.log2(ids.length)) - 6)),
    windowBits: isShort ? 13 : 9,
    strategy: isShort ? constants.Z_DEFAULT_STRATEGY : constants.Z_HUFFMAN_ONLY,
  });
}

/** Throws a RangeError or a zlib error when the bytes are not what `packIds` makes. */
export function unpackIds(packed: PackedIds): Int32Array {
  const { count, width, data, deflatedPlanes, largest, classes } = packed;
  if (count > maxCount) throw new RangeError(`${count} ids are more than any call has`);
  if (largest > 0) return unpackRadix(data, count, idGrouping(largest));
  if (classes) return unpackIdClasses(data, count);
  return deflatedPlanes
    ? fromBytePlanes(inflateRawSync(data, { maxOutputLength: Math.max(1, count * 4) }), count)
    : unpackBits(data, count, width);
}

/** Floats as they are, in planes, where a code for their exponents does not pay. */
export function packFloats(values: Float32Array): PackedFloats {
  const bits = new Int32Array(values.buffer, values.byteOffset, values.length);
  const classes = bits.length < minClassCount ? undefined : floatClassCode(bits);
  const isClassed = classes !== undefined && classes.bits < 32 * bits.length;
  return {
    $typeName: "outrigger.v1.PackedFloats",
    data: isClassed ? packFloatClasses(bits, classes) : toBytePlanes(bits, 4),
    deflated: false,
    count: isClassed ? bits.length : 0,
  };
}

/** Every bit as it was, NaN payloads included. Throws like `unpackIds`. */
export function unpackFloats({ data, deflated, count }: PackedFloats): Float32Array {
  if (count > maxCount) throw new RangeError(`${count} floats are more than any call has`);
  const bits = count > 0 ? unpackFloatClasses(data, count) : floatsOfPlanes(data, deflated);
  return new Float32Array(bits.buffer, bits.byteOffset, bits.length);
}

function floatsOfPlanes(data: Uint8Array, deflated: boolean): Int32Array {
  const planes = deflated ? inflateRawSync(data, { maxOutputLength: 4 * maxCount }) : data;
  if (planes.length % 4 !== 0) throw new RangeError(`${planes.length} bytes are not whole floats`);
  return fromBytePlanes(planes, planes.length / 4);
}
