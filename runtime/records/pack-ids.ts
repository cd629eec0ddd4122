import { constants, deflateRawSync, inflateRawSync } from "node:zlib";
import { bitWidth, packBits, unpackBits } from "../../core/records/bit-packing.ts";
import { fromBytePlanes, toBytePlanes } from "../../core/records/byte-planes.ts";
import type { PackedFloats, PackedIds } from "../../proto/gen/outrigger/v1/record_pb.ts";

/** Below this, setting up deflate costs more time than the bytes are worth. */
const minDeflateCount = 64;
/** Above this, deflate would hold up the event loop for tens of milliseconds. */
const maxDeflateCount = 65_536;
/** No response is longer: a bound on what a forged record can make of its bytes. */
const maxFloatBytes = 64 * 1024 * 1024;
/** Up to this, matches are searched too; beyond it only the byte statistics are used: 60 ns a byte. */
const maxMatchCount = 2048;

export function packIds(ids: Int32Array): PackedIds {
  const width = bitWidth(ids);
  const plain = packBits(ids, width);
  if (isWorthDeflating(ids.length)) {
    const deflated = deflatePlanes(toBytePlanes(ids, Math.ceil(width / 8)), ids.length);
    if (deflated.length < plain.length) return packedIds(ids.length, 0, deflated, true);
  }
  return packedIds(ids.length, width, plain, false);
}

/** Written out: `create` walks descriptors, and every call makes three of these. */
function packedIds(
  count: number,
  width: number,
  data: Uint8Array,
  deflatedPlanes: boolean,
): PackedIds {
  return { $typeName: "outrigger.v1.PackedIds", count, width, data, deflatedPlanes };
}

/** Throws a RangeError or a zlib error when the bytes are not what `packIds` makes. */
export function unpackIds(packed: PackedIds): Int32Array {
  const { count, width, data, deflatedPlanes } = packed;
  return deflatedPlanes
    ? fromBytePlanes(inflateRawSync(data, { maxOutputLength: Math.max(1, count * 4) }), count)
    : unpackBits(data, count, width);
}

export function packFloats(values: Float32Array): PackedFloats {
  const bits = new Int32Array(values.buffer, values.byteOffset, values.length);
  const planes = toBytePlanes(bits, 4);
  if (isWorthDeflating(values.length)) {
    const deflated = deflatePlanes(planes, values.length);
    if (deflated.length < planes.length)
      return { $typeName: "outrigger.v1.PackedFloats", data: deflated, deflated: true };
  }
  return { $typeName: "outrigger.v1.PackedFloats", data: planes, deflated: false };
}

/** Every bit as it was, NaN payloads included. Throws like `unpackIds`. */
export function unpackFloats(packed: PackedFloats): Float32Array {
  const planes = packed.deflated
    ? inflateRawSync(packed.data, { maxOutputLength: maxFloatBytes })
    : packed.data;
  if (planes.length % 4 !== 0) throw new RangeError(`${planes.length} bytes are not whole floats`);
  const bits = fromBytePlanes(planes, planes.length / 4);
  return new Float32Array(bits.buffer, bits.byteOffset, bits.length);
}

function isWorthDeflating(count: number): boolean {
  return count >= minDeflateCount && count <= maxDeflateCount;
}

/** The block size of deflate follows the plane length, so that each plane gets its own code. */
function deflatePlanes(planes: Uint8Array, planeLength: number): Uint8Array {
  const memLevel = Math.min(6, Math.max(1, Math.round(Math.log2(planeLength)) - 6));
  const isShort = planeLength <= maxMatchCount;
  return deflateRawSync(planes, {
    level: 6,
    memLevel,
    windowBits: isShort ? 13 : 9,
    strategy: isShort ? constants.Z_DEFAULT_STRATEGY : constants.Z_HUFFMAN_ONLY,
  });
}
