import {
  closeSync,
  fdatasync,
  fsync,
  fsyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  rmSync,
  writeSync,
} from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Logger } from "../../runtime/log.ts";
import { type AckedPosition, openAckedPosition } from "./acked-position.ts";
import { encodeFrame, scanSegment, segmentMagic } from "./spool-frame.ts";
import { lockSpool } from "./spool-lock.ts";
import {
  listSegments,
  readOrCreateSpoolId,
  recoverLastSegment,
  type Segment,
  segmentPath,
} from "./spool-segments.ts";

/** What a record in memory takes beside its bytes: a small one costs mostly this. */
const frameMemoryBytes = 512;

/** One spooled record: its number and its encoded bytes. */
export interface SpoolFrame {
  readonly seq: number;
  readonly payload: Uint8Array;
}

export type SpoolRefusal = "spool-full" | "disk-full" | "spool-io-error" | "uplink-closed";
export type AppendOutcome =
  | { readonly kept: true; readonly seq: number }
  | { readonly kept: false; readonly reason: SpoolRefusal };

export interface SpoolOptions {
  readonly directory: string;
  readonly log: Logger;
  /** Default 1 GiB. */
  readonly maxBytes?: number;
  /** A segment is closed when it has so many bytes; default 4 MiB, at most an eighth of the bound. */
  readonly segmentBytes?: number;
  /** Default 100. */
  readonly syncDelayMs?: number;
  /**
   * Memory for the latest records, so that a connection need not read what was just written;
   * default 256 KiB. Everything older is read back from its segment when it is sent.
   */
  readonly maxTailBytes?: number;
  /** Records that a damaged segment has lost, once per segment. */
  readonly onDamage?: (lostRecords: number) => void;
}

/**
 * An append-only queue on disk between the capture and the controller.
 *
 * Durability: an append has been written to the file (not only to a buffer of this process) when
 * it returns, so kill -9 loses nothing; the file is synced to the device within `syncDelayMs`, so
 * that a power loss takes at most the records of that moment. A tail torn by such an end is cut
 * off at the next open.
 *
 * Bounded by `maxBytes`: when full, an append is refused with a reason and nothing is written; a
 * sixteenth (at most 1 MiB) is kept for urgent, small records. Segments go when everything in them
 * is acknowledged.
 */
export class Spool {
  readonly spoolId: string;
  readonly maxBytes: number;
  readonly #options: SpoolOptions;
  readonly #segmentBytes: number;
  readonly #acked: AckedPosition;
  readonly #segments: Segment[];
  readonly #unlock: () => void;
  readonly #damaged = new Set<string>();
  #lastSeq: number;
  #bytes: number;
  /** Of the last segment while it is open for appending. */
  #fd: number | undefined;
  #directoryDirty = false;
  #syncTimer: NodeJS.Timeout | undefined;
  #tail: SpoolFrame[] = [];
  #tailBytes = 0;
  #onAppend: (() => void) | undefined;
  #closed = false;

  /** Use `openSpool`. */
  constructor(options: SpoolOptions, unlock: () => void) {
    const { directory, log, maxBytes = 1024 ** 3 } = options;
    this.#options = options;
    this.#unlock = unlock;
    this.maxBytes = maxBytes;
    this.#segmentBytes = Math.min(options.segmentBytes ?? 4 * 1024 ** 2, Math.ceil(maxBytes / 8));
    this.spoolId = readOrCreateSpoolId(directory);
    this.#acked = openAckedPosition(join(directory, "acked"));
    this.#segments = listSegments(directory);
    const { lastSeq, tornBytes } = recoverLastSegment(this.#segments);
    if (tornBytes > 0) log.warn({ directory, tornBytes }, "cut the torn end off the spool");
    this.#lastSeq = Math.max(lastSeq, this.#acked.seq);
    this.#bytes = this.#segments.reduce((sum, segment) => sum + segment.bytes, 0);
    this.#dropAcked();
  }

  /** Everything up to here is durable at the controller. */
  get ackedSeq(): number {
    return this.#acked.seq;
  }

  /** Of the last record; 0 before the first. */
  get lastSeq(): number {
    return this.#lastSeq;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Of the records not yet acknowledged, those that are held in memory as well as on disk. */
  get recordsInMemory(): number {
    return this.#tail.length;
  }

  append(payloadOf: (seq: number) => Uint8Array, urgent = false): AppendOutcome {
    if (this.#closed) return { kept: false, reason: "uplink-closed" };
    const payload = payloadOf(this.#lastSeq + 1);
    const frame = encodeFrame(payload);
    const reserve = urgent ? 0 : Math.min(1024 ** 2, Math.ceil(this.maxBytes / 16));
    if (this.#bytes + frame.length + segmentMagic.length > this.maxBytes - reserve)
      return { kept: false, reason: "spool-full" };
    const refusal = this.#write(frame);
    if (refusal !== undefined) return { kept: false, reason: refusal };
    this.#lastSeq += 1;
    this.#keepInTail({ seq: this.#lastSeq, payload });
    this.#syncTimer ??= setTimeout(() => this.#sync(), this.#options.syncDelayMs ?? 100).unref();
    this.#onAppend?.();
    return { kept: true, seq: this.#lastSeq };
  }

  /** Calls `listener` after each append. */
  onAppend(listener: () => void): void {
    this.#onAppend = listener;
  }

  /** Records from `seq` on, as many as one read gives; none when `seq` is beyond the last. */
  async readFrom(seq: number): Promise<readonly SpoolFrame[]> {
    if (seq > this.#lastSeq) return [];
    const tailStart = this.#tail[0]?.seq ?? Number.POSITIVE_INFINITY;
    if (tailStart <= seq) return this.#tail.slice(seq - tailStart);
    const index = Math.max(
      0,
      this.#segments.findLastIndex((segment) => segment.firstSeq <= seq),
    );
    const segment = this.#segments[index];
    const following = this.#segments[index + 1];
    if (segment === undefined) return [];
    const { payloads } = scanSegment(await readFile(segment.path));
    if (following !== undefined)
      this.#reportDamage(segment, following.firstSeq - segment.firstSeq - payloads.length);
    const frames = payloads
      .map((payload, i) => ({ seq: segment.firstSeq + i, payload }))
      .filter((frame) => frame.seq >= seq);
    if (frames.length > 0 || following === undefined) return frames;
    return this.readFrom(following.firstSeq);
  }

  /** Everything up to `seq` is durable at the controller. */
  acknowledge(seq: number): void {
    const known = Math.min(seq, this.#lastSeq);
    if (this.#closed || known <= this.#acked.seq) return;
    this.#acked.advance(known);
    while ((this.#tail[0]?.seq ?? Number.POSITIVE_INFINITY) <= known) this.#shiftTail();
    this.#dropAcked();
  }

  /** Syncs to the device, and lets another process open the directory. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#syncTimer);
    if (this.#fd !== undefined) {
      fsyncSync(this.#fd);
      closeSync(this.#fd);
      this.#fd = undefined;
    }
    this.#acked.close();
    this.#unlock();
  }

  #write(frame: Buffer): SpoolRefusal | undefined {
    let target: { readonly segment: Segment; readonly fd: number } | undefined;
    try {
      target = this.#openForAppend();
      writeWhole(target.fd, frame, target.segment.bytes);
    } catch (error) {
      // Bytes that cannot be cut off again end the segment: readers stop at what is not whole.
      if (target !== undefined && !cutBack(target.fd, target.segment.bytes)) this.#closeSegment();
      const { directory, log } = this.#options;
      log.error({ err: error, directory }, "a record could not be written to the spool");
      return isDiskFull(error) ? "disk-full" : "spool-io-error";
    }
    target.segment.bytes += frame.length;
    this.#bytes += frame.length;
    return undefined;
  }

  /** The open segment, or a new one when there is none or it is full. */
  #openForAppend(): { readonly segment: Segment; readonly fd: number } {
    const current = this.#segments.at(-1);
    if (this.#fd !== undefined && current !== undefined && current.bytes < this.#segmentBytes)
      return { segment: current, fd: this.#fd };
    this.#closeSegment();
    const firstSeq = this.#lastSeq + 1;
    const path = segmentPath(this.#options.directory, firstSeq);
    const fd = openSync(path, "w", 0o600);
    try {
      writeWhole(fd, segmentMagic, 0);
    } catch (error) {
      closeSync(fd);
      rmSync(path, { force: true });
      throw error;
    }
    // A failed append may have left a segment of the same number, without a record.
    if (current?.firstSeq === firstSeq) this.#bytes -= (this.#segments.pop() as Segment).bytes;
    const segment = { path, firstSeq, bytes: segmentMagic.length };
    this.#segments.push(segment);
    this.#bytes += segment.bytes;
    this.#fd = fd;
    this.#directoryDirty = true;
    return { segment, fd };
  }

  #closeSegment(): void {
    if (this.#fd === undefined) return;
    const fd = this.#fd;
    this.#fd = undefined;
    fdatasync(fd, () => closeSync(fd));
  }

  #sync(): void {
    this.#syncTimer = undefined;
    if (this.#fd !== undefined) fdatasync(this.#fd, (error) => this.#afterSync(error));
    if (!this.#directoryDirty) return;
    let fd: number;
    try {
      fd = openSync(this.#options.directory, "r");
    } catch (error) {
      // No descriptor left, say. The next record tries again; what is written stays written.
      this.#afterSync(error as NodeJS.ErrnoException);
      return;
    }
    this.#directoryDirty = false;
    fsync(fd, (error) => {
      closeSync(fd);
      this.#afterSync(error);
    });
  }

  #afterSync(error: NodeJS.ErrnoException | null): void {
    // A segment that was closed in the meantime was synced then.
    if (error === null || error.code === "EBADF") return;
    this.#options.log.error({ err: error }, "the spool could not be synced to its device");
  }

  #dropAcked(): void {
    const isAllAcked = this.#acked.seq >= this.#lastSeq;
    const last = this.#segments.at(-1);
    if (isAllAcked && last !== undefined && last.bytes >= this.#segmentBytes / 4)
      this.#closeSegment();
    while (this.#segments.length > 0) {
      const following = this.#segments[1];
      const isDone =
        following === undefined
          ? isAllAcked && this.#fd === undefined
          : following.firstSeq - 1 <= this.#acked.seq;
      if (!isDone) break;
      const [segment] = this.#segments as [Segment];
      try {
        rmSync(segment.path, { force: true });
      } catch (error) {
        // It goes on counting, and is tried again with the next acknowledgement.
        this.#options.log.error({ err: error, path: segment.path }, "a spool segment stays");
        break;
      }
      this.#segments.shift();
      this.#bytes -= segment.bytes;
    }
  }

  #keepInTail(frame: SpoolFrame): void {
    this.#tail.push(frame);
    this.#tailBytes += frame.payload.length + frameMemoryBytes;
    while (this.#tailBytes > (this.#options.maxTailBytes ?? 256 * 1024)) this.#shiftTail();
  }

  #shiftTail(): void {
    const frame = this.#tail.shift();
    if (frame !== undefined) this.#tailBytes -= frame.payload.length + frameMemoryBytes;
  }

  #reportDamage(segment: Segment, lostRecords: number): void {
    if (lostRecords <= 0 || this.#damaged.has(segment.path)) return;
    this.#damaged.add(segment.path);
    this.#options.log.error({ path: segment.path, lostRecords }, "a spool segment is damaged");
    this.#options.onDamage?.(lostRecords);
  }
}

/** Opens a spool directory, which it makes if it must, and goes on where the last process ended. */
export function openSpool(options: SpoolOptions): Spool {
  const { directory } = options;
  let unlock: (() => void) | undefined;
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    unlock = lockSpool(directory);
    return new Spool(options, unlock);
  } catch (cause) {
    unlock?.();
    if (cause instanceof OutriggerError) throw cause;
    throw new OutriggerError(
      "spool-unusable",
      `cannot open the spool in ${directory}: ${(cause as Error).message}`,
      {
        origin: "user",
        hint: "Give a directory that this process may write to, with room on its disk.",
        cause,
      },
    );
  }
}

function writeWhole(fd: number, bytes: Uint8Array, position: number): void {
  for (let at = 0; at < bytes.length; )
    at += writeSync(fd, bytes, at, bytes.length - at, position + at);
}

function cutBack(fd: number, length: number): boolean {
  try {
    ftruncateSync(fd, length);
    return true;
  } catch {
    return false;
  }
}

function isDiskFull(error: unknown): boolean {
  // EFBIG: the file size limit of the process.
  return ["ENOSPC", "EDQUOT", "EFBIG"].includes((error as NodeJS.ErrnoException).code ?? "");
}
