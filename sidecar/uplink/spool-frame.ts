import { crc32 } from "node:zlib";

/**
 * A segment of the spool is a magic word, then frames: length of the payload and its CRC-32
 * (zlib's), both 32 bits little-endian, then the payload. A frame is never empty, so that a tail of
 * zeros (a file that grew but was not written before a power loss) is not taken for frames.
 */
export const segmentMagic = Buffer.from("outrspl1", "latin1");
const headerBytes = 8;

export function encodeFrame(payload: Uint8Array): Buffer {
  const frame = Buffer.allocUnsafe(headerBytes + payload.length);
  frame.writeUInt32LE(payload.length, 0);
  frame.writeUInt32LE(crc32(payload), 4);
  frame.set(payload, headerBytes);
  return frame;
}

export interface ScannedSegment {
  /** Views of the input. */
  readonly payloads: readonly Uint8Array[];
  /** Bytes up to the end of the last whole frame; 0 when even the magic word is not there. */
  readonly validBytes: number;
}

/** Reads frames up to the first that is torn or wrong. */
export function scanSegment(bytes: Buffer): ScannedSegment {
  const payloads: Uint8Array[] = [];
  if (!bytes.subarray(0, segmentMagic.length).equals(segmentMagic))
    return { payloads, validBytes: 0 };
  let at = segmentMagic.length;
  while (at + headerBytes <= bytes.length) {
    const length = bytes.readUInt32LE(at);
    const end = at + headerBytes + length;
    if (length === 0 || end > bytes.length) break;
    const payload = bytes.subarray(at + headerBytes, end);
    if (crc32(payload) !== bytes.readUInt32LE(at + 4)) break;
    payloads.push(payload);
    at = end;
  }
  return { payloads, validBytes: at };
}
