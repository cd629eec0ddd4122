import { create } from "@bufbuild/protobuf";
import { pino } from "pino";
import { describe, expect, it } from "vitest";
import { RecordSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { AppendResult, ReceivedRecord } from "../store/call-store.ts";
import { createRecordBatcher, type RecordBatcherOptions } from "./record-batcher.ts";

type Append = (batch: readonly ReceivedRecord[]) => Promise<AppendResult>;

/** A batcher over a store that is only its `appendRecords`. */
function batcher(append: Append, options: Partial<RecordBatcherOptions> = {}) {
  const durable: number[] = [];
  const batches: number[] = [];
  const made = createRecordBatcher({
    store: {
      appendRecords: (batch) => {
        batches.push(batch.length);
        return append(batch);
      },
    },
    log: pino({ level: "silent" }),
    maxBatchRecords: 3,
    maxBatchDelayMs: 3_600_000,
    maxQueuedBytes: 100,
    onCommitted: () => {},
    ...options,
  });
  const add = (seq: number, bytes = 1): void =>
    made.add({
      spoolId: "s",
      record: create(RecordSchema, { seq: BigInt(seq) }),
      bytes,
      onDurable: () => durable.push(seq),
    });
  return { ...made, add, durable, batches };
}

const stored: AppendResult = { newRequestIds: [], newEventIds: [], duplicates: 0 };

describe("group commit", () => {
  it("commits a full batch at once, the rest after the delay, in order", async () => {
    const b = batcher(() => Promise.resolve(stored), { maxBatchDelayMs: 1 });
    for (let seq = 1; seq <= 7; seq += 1) b.add(seq);
    await b.flush();
    expect(b.batches).toEqual([3, 3, 1]);
    expect(b.durable).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it("says durable only after the commit", async () => {
    let commit: () => void = () => {};
    const b = batcher(
      () =>
        new Promise((resolve) => {
          commit = () => resolve(stored);
        }),
    );
    for (let seq = 1; seq <= 3; seq += 1) b.add(seq);
    expect(b.durable).toEqual([]);
    commit();
    await b.flush();
    expect(b.durable).toEqual([1, 2, 3]);
  });

  it("holds the streams back while its queue is full, and lets them go on after", async () => {
    const b = batcher(() => Promise.resolve(stored), { maxBatchRecords: 100 });
    b.add(1, 60);
    expect(b.room()).toBeUndefined();
    b.add(2, 60);
    const room = b.room();
    expect(room).toBeInstanceOf(Promise);
    await b.flush();
    await room;
    expect(b.room()).toBeUndefined();
  });

  it("tries again when the store fails, and acknowledges nothing meanwhile", async () => {
    let failures = 1;
    const b = batcher(() => {
      if (failures === 0) return Promise.resolve(stored);
      failures -= 1;
      return Promise.reject(new Error("disk full"));
    });
    for (let seq = 1; seq <= 3; seq += 1) b.add(seq);
    await b.flush();
    expect(b.batches).toEqual([3, 3]);
    expect(b.durable).toEqual([1, 2, 3]);
  });

  it("ends when closed although the store fails", async () => {
    const b = batcher(() => Promise.reject(new Error("disk full")));
    b.add(1);
    await b.close();
    expect(b.durable).toEqual([]);
  });
});
