import { constants, deflateRawSync, inflateRawSync } from "node:zlib";
import { create } from "@bufbuild/protobuf";
import { bitWidth, packBits, unpackBits } from "../../core/records/bit-packing.ts";
import { fromBytePlanes, toBytePlanes } from "../../core/records/byte-planes.ts";
import {
  type PackedFloats,
  PackedFloatsSchema,
  type PackedIds,
  PackedIdsSchema,
} from "../../proto/gen/outrigger/v1/record_pb.ts";

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
    if (deflated.length < plain.length)
      return create(PackedIdsSchema, { count: ids.length, data: deflated, deflatedPlanes: true });
  }
  return create(PackedIdsSchema, { count: ids.length, width, data: plain });
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
      return create(PackedFloatsSchema, { data: deflated, deflated: true });
  }
  return create(PackedFloatsSchema, { data: planes });
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
