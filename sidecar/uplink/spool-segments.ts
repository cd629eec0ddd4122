import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { scanSegment } from "./spool-frame.ts";

/** A file of frames numbered from `firstSeq`; the number is its name. */
export interface Segment {
  readonly path: string;
  readonly firstSeq: number;
  bytes: number;
}

const segmentPattern = /^(\d{16})\.seg$/;

export function segmentPath(directory: string, firstSeq: number): string {
  return join(directory, `${String(firstSeq).padStart(16, "0")}.seg`);
}

/** In order of their numbers. */
export function listSegments(directory: string): Segment[] {
  return readdirSync(directory)
    .filter((name) => segmentPattern.test(name))
    .sort()
    .map((name) => {
      const path = join(directory, name);
      return { path, firstSeq: Number.parseInt(name, 10), bytes: statSync(path).size };
    });
}

export interface Recovery {
  /** Of the last whole record on disk; 0 for none. */
  readonly lastSeq: number;
  /** Bytes of a torn tail that were cut off. */
  readonly tornBytes: number;
}

/** Cuts the torn tail off the last segment (which goes when nothing is left of it). */
export function recoverLastSegment(segments: Segment[]): Recovery {
  const last = segments.at(-1);
  if (last === undefined) return { lastSeq: 0, tornBytes: 0 };
  const { payloads, validBytes } = scanSegment(readFileSync(last.path));
  const tornBytes = last.bytes - validBytes;
  if (payloads.length === 0) {
    rmSync(last.path);
    segments.pop();
  } else if (tornBytes > 0) {
    truncateSync(last.path, validBytes);
    last.bytes = validBytes;
  }
  return { lastSeq: last.firstSeq - 1 + payloads.length, tornBytes };
}

/** The id that sequence numbers count within; made with the directory. */
export function readOrCreateSpoolId(directory: string): string {
  const path = join(directory, "spool-id");
  try {
    const id = readFileSync(path, "utf8");
    if (/^[0-9a-f-]{36}$/.test(id)) return id;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  const id = randomUUID();
  writeFileSync(path, id, { mode: 0o600 });
  return id;
}
