import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openSpool, type Spool, type SpoolOptions } from "./spool.ts";
import { encodeFrame, scanSegment, segmentMagic } from "./spool-frame.ts";
import { segmentPath } from "./spool-segments.ts";

let directory: string;
let opened: Spool[];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "outrigger-spool-"));
  opened = [];
});
afterEach(() => {
  for (const spool of opened) spool.close();
  rmSync(directory, { recursive: true, force: true });
});

function open(options: Partial<SpoolOptions> = {}): Spool {
  const spool = openSpool({ directory, log: pino({ level: "silent" }), ...options });
  opened.push(spool);
  return spool;
}

/** A record that says its own number, `size` bytes long. */
const payload = (seq: number, size = 20): Uint8Array => Buffer.from(`${seq}`.padEnd(size, "."));
const add = (spool: Spool, count: number, size?: number): void => {
  for (let i = 0; i < count; i += 1)
    expect(spool.append((seq) => payload(seq, size)).kept).toBe(true);
};
async function readAll(spool: Spool, from = spool.ackedSeq + 1): Promise<number[]> {
  const seqs: number[] = [];
  for (let next = from; ; ) {
    const frames = await spool.readFrom(next);
    if (frames.length === 0) return seqs;
    for (const frame of frames) {
      expect(Number.parseInt(Buffer.from(frame.payload).toString(), 10)).toBe(frame.seq);
      seqs.push(frame.seq);
      next = frame.seq + 1;
    }
  }
}
const upTo = (last: number, first = 1): number[] =>
  Array.from({ length: last - first + 1 }, (_, i) => first + i);
const segmentNames = (): string[] => readdirSync(directory).filter((n) => n.endsWith(".seg"));
const bytesOnDisk = (): number =>
  segmentNames().reduce((sum, name) => sum + statSync(join(directory, name)).size, 0);

describe("a spool", () => {
  it("numbers records and gives them back, from memory and from disk", async () => {
    const spool = open({ maxTailBytes: 2_000, segmentBytes: 200 });
    add(spool, 30);
    expect(segmentNames().length).toBeGreaterThan(3);
    expect(await readAll(spool)).toEqual(upTo(30));
    expect(await readAll(spool, 29)).toEqual([29, 30]);
    expect(await readAll(spool, 31)).toEqual([]);
  });

  it("keeps few of many unacknowledged records in memory, and sends the others from disk", async () => {
    const spool = open();
    add(spool, 4_000, 200);
    expect(spool.recordsInMemory).toBeLessThan(500);
    expect(await readAll(spool)).toEqual(upTo(4_000));
    expect(spool.recordsInMemory).toBeLessThan(500);
    spool.acknowledge(4_000);
    expect(spool.recordsInMemory).toBe(0);
  });

  it("goes on after a restart with what is not acknowledged, under the same id", async () => {
    const first = open({ segmentBytes: 200 });
    add(first, 20);
    first.acknowledge(13);
    first.close();
    const second = open({ segmentBytes: 200 });
    expect(second.spoolId).toBe(first.spoolId);
    expect([second.ackedSeq, second.lastSeq]).toEqual([13, 20]);
    add(second, 2);
    expect(await readAll(second)).toEqual(upTo(22, 14));
    second.acknowledge(22);
    second.close();
    const third = open();
    expect(segmentNames()).toEqual([]);
    add(third, 1);
    expect(await readAll(third)).toEqual([23]);
  });

  it("deletes segments when everything in them is acknowledged", () => {
    const spool = open({ segmentBytes: 200 });
    add(spool, 50);
    const before = segmentNames().length;
    spool.acknowledge(25);
    expect(segmentNames().length).toBeLessThan(before);
    expect(spool.bytes).toBe(bytesOnDisk());
    spool.acknowledge(1000);
    expect(spool.ackedSeq).toBe(50);
    expect(segmentNames().length).toBeLessThanOrEqual(1);
  });

  it("does not trust a damaged acknowledged position: it sends again", async () => {
    const first = open();
    add(first, 5);
    first.acknowledge(3);
    first.close();
    appendFileSync(join(directory, "acked"), "x");
    const second = open();
    expect(second.ackedSeq).toBe(0);
    expect(await readAll(second)).toEqual(upTo(5));
  });
});

describe("after an end in the middle of a write", () => {
  it("keeps every whole record, wherever the file was torn", async () => {
    const writer = open();
    add(writer, 4);
    writer.close();
    const path = segmentPath(directory, 1);
    const whole = readFileSync(path);
    for (let length = whole.length; length >= 0; length -= 1) {
      writeFileSync(path, whole);
      truncateSync(path, length);
      const frameBytes = (whole.length - segmentMagic.length) / 4;
      const kept = Math.max(0, Math.floor((length - segmentMagic.length) / frameBytes));
      const spool = open({ maxTailBytes: 0 });
      expect(spool.lastSeq).toBe(kept);
      add(spool, 2);
      expect(await readAll(spool)).toEqual(upTo(kept + 2));
      spool.close();
      for (const name of segmentNames()) rmSync(join(directory, name));
    }
  });

  it("does not take a tail of zeros for records", () => {
    const writer = open();
    add(writer, 2);
    writer.close();
    appendFileSync(segmentPath(directory, 1), Buffer.alloc(100));
    expect(open().lastSeq).toBe(2);
  });

  it("finds a changed byte, counts what is lost, and delivers the rest", async () => {
    const writer = open({ segmentBytes: 100 });
    add(writer, 12);
    writer.close();
    const path = segmentPath(directory, 1);
    const bytes = readFileSync(path);
    bytes[segmentMagic.length + 40] = (bytes[segmentMagic.length + 40] as number) ^ 1;
    writeFileSync(path, bytes);
    const inFirst = scanSegment(bytes).payloads.length;
    const next = Number.parseInt(segmentNames()[1] as string, 10);
    const lost: number[] = [];
    const spool = open({ segmentBytes: 100, maxTailBytes: 0, onDamage: (n) => lost.push(n) });
    expect(await readAll(spool)).toEqual([...upTo(inFirst), ...upTo(12, next)]);
    expect(await readAll(spool)).toHaveLength(inFirst + 12 - next + 1);
    expect(lost).toEqual([next - 1 - inFirst]);
  });
});

describe("when full", () => {
  it("refuses with a reason, never exceeds its bound, and takes records again after an ack", () => {
    const spool = open({ maxBytes: 4000 });
    let kept = 0;
    for (; spool.append((seq) => payload(seq, 100)).kept; kept += 1);
    expect(kept).toBeGreaterThan(20);
    expect(spool.append((seq) => payload(seq, 100))).toEqual({ kept: false, reason: "spool-full" });
    expect(bytesOnDisk()).toBeLessThanOrEqual(4000);
    spool.acknowledge(kept - 3);
    expect(spool.append((seq) => payload(seq, 100))).toEqual({ kept: true, seq: kept + 1 });
  });

  it("has room left for urgent records", () => {
    const spool = open({ maxBytes: 16_000 });
    while (spool.append((seq) => payload(seq, 500)).kept);
    expect(spool.append((seq) => payload(seq, 500), true).kept).toBe(true);
    while (spool.append((seq) => payload(seq, 500), true).kept);
    expect(bytesOnDisk()).toBeLessThanOrEqual(16_000);
  });

  it("says so when the disk is full, loses nothing that it kept, and recovers", async () => {
    const spool = open({ segmentBytes: 100, maxTailBytes: 0 });
    add(spool, 3, 100);
    symlinkSync("/dev/full", segmentPath(directory, 4));
    expect(spool.append((seq) => payload(seq))).toEqual({ kept: false, reason: "disk-full" });
    add(spool, 2);
    expect(await readAll(spool)).toEqual(upTo(5));
  });

  it("outlives a device sync that finds no directory or no descriptor", async () => {
    const log = pino({ level: "silent" });
    const logged = new Promise<string>((resolve) => {
      log.error = (_facts: unknown, message?: string) => resolve(message ?? "");
    });
    const spool = open({ log, syncDelayMs: 1 });
    add(spool, 1);
    rmSync(directory, { recursive: true });
    expect(await logged).toBe("the spool could not be synced to its device");
    add(spool, 1);
  });

  it("keeps counting a segment that cannot be deleted, and tries again", () => {
    const spool = open({ segmentBytes: 200 });
    add(spool, 50);
    const [first = ""] = segmentNames();
    const path = join(directory, first);
    renameSync(path, `${path}.kept`);
    mkdirSync(path);
    const before = spool.bytes;
    spool.acknowledge(25);
    expect([spool.ackedSeq, spool.bytes]).toEqual([25, before]);
    rmSync(path, { recursive: true });
    renameSync(`${path}.kept`, path);
    spool.acknowledge(50);
    expect(spool.bytes).toBe(bytesOnDisk());
    expect(segmentNames().length).toBeLessThanOrEqual(1);
  });
});

describe("opening", () => {
  it("is refused while the directory is in use, and allowed after a crash of its user", () => {
    const spool = open();
    expect(() => open()).toThrow(expect.objectContaining({ reason: "spool-in-use" }));
    spool.close();
    writeFileSync(join(directory, "lock"), "999999999 1");
    expect(open().lastSeq).toBe(0);
  });

  it("explains a directory that cannot be used", () => {
    writeFileSync(join(directory, "file"), "");
    expect(() => open({ directory: join(directory, "file", "x") })).toThrow(
      expect.objectContaining({ reason: "spool-unusable", origin: "user" }),
    );
  });
});

describe("frames", () => {
  it("carry a CRC-32 as zlib computes it", () => {
    const frame = encodeFrame(Buffer.from("123456789"));
    expect(frame.readUInt32LE(0)).toBe(9);
    expect(frame.readUInt32LE(4)).toBe(0xcbf43926);
  });
});
