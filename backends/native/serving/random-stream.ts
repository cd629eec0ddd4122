import { createHash } from "node:crypto";

/** Uniform numbers in [0, 1) with 32 bits each. */
export type RandomStream = () => number;

/**
 * A stream that depends only on `parts`: sfc32 (Chris Doty-Humphrey's small fast counter) started
 * from their SHA-256.
 */
export function randomStream(...parts: readonly (string | number | Uint8Array)[]): RandomStream {
  const hash = createHash("sha256");
  for (const part of parts) {
    const bytes = typeof part === "object" ? part : Buffer.from(String(part));
    hash.update(`${bytes.length}:`).update(bytes);
  }
  const digest = hash.digest();
  let a = digest.readUInt32LE(0);
  let b = digest.readUInt32LE(4);
  let c = digest.readUInt32LE(8);
  let counter = digest.readUInt32LE(12);
  return () => {
    const t = (a + b + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + t;
    return (((c | 0) >>> 0) + 0) / 2 ** 32;
  };
}
