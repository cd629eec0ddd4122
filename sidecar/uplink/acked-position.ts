import { closeSync, constants, openSync, readFileSync, writeSync } from "node:fs";
import { crc32 } from "node:zlib";

/** The highest acknowledged sequence number, kept in a file of 12 bytes. */
export interface AckedPosition {
  readonly seq: number;
  advance(seq: number): void;
  close(): void;
}

const positionBytes = 12;

/**
 * A position that cannot be read counts as 0: records are then sent again, and the store tells
 * them apart by id. It is not synced to the device for the same reason.
 */
export function openAckedPosition(path: string): AckedPosition {
  let seq = readPosition(path);
  let fd: number | undefined;
  const buffer = Buffer.alloc(positionBytes);
  return {
    get seq() {
      return seq;
    },
    advance: (next) => {
      seq = next;
      buffer.writeBigUInt64LE(BigInt(seq), 0);
      buffer.writeUInt32LE(crc32(buffer.subarray(0, 8)), 8);
      try {
        fd ??= openSync(path, constants.O_CREAT | constants.O_WRONLY, 0o600);
        writeSync(fd, buffer, 0, positionBytes, 0);
      } catch {
        // A full disk: what is acknowledged is sent again after a restart.
      }
    },
    close: () => {
      if (fd !== undefined) closeSync(fd);
      fd = undefined;
    },
  };
}

function readPosition(path: string): number {
  try {
    const bytes = readFileSync(path);
    if (bytes.length !== positionBytes) return 0;
    if (crc32(bytes.subarray(0, 8)) !== bytes.readUInt32LE(8)) return 0;
    return Number(bytes.readBigUInt64LE(0));
  } catch {
    return 0;
  }
}
