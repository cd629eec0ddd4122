/**
 * The record path: bytes per token on the wire of a long trajectory, and records per second into
 * the store with group commit against one commit per record, in the same run.
 * Run: `npx tsx bench/ingest.ts`.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { performance } from "node:perf_hooks";
import process from "node:process";
import { create } from "@bufbuild/protobuf";
import { openCallStore } from "../controller/store/call-store.ts";
import { migrations } from "../controller/store/migrations.ts";
import { openDatabase } from "../controller/store/open-database.ts";
import { seededRandom } from "../core/assembly/testing/random.ts";
import { CallRecordSchema } from "../proto/gen/outrigger/v1/record_pb.ts";
import { RecordSchema } from "../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { FinishedCall } from "../sidecar/capture/finished-call.ts";
import {
  encodeAll,
  framedBytes,
  type TrajectoryShape,
  wireBytes,
  wireTrajectory,
} from "./wire-trajectory.ts";

/** Every call in full, ids and logprobs as 4 bytes each: what a capture without deltas sends. */
function naiveBytes(calls: readonly FinishedCall[]): number {
  return calls.reduce((sum, call) => {
    const sampled = call.choices.reduce((n, c) => n + (c.responseIds?.length ?? 0), 0);
    return sum + framedBytes(4 * (call.promptIds?.length ?? 0) + 8 * sampled + 400);
  }, 0);
}

function benchWire(): void {
  for (const ids of ["text", "uniform"] as const) {
    for (const logprobs of ["random", "engine"] as const) {
      for (const sampledShare of [0.1, 0.25, 0.4])
        benchTrajectory({ turns: 50, finalTokens: 32_768, sampledShare, ids, logprobs });
    }
    benchLargestShare(ids);
  }
}

/** The largest share of sampled tokens, in hundredths, at which a token costs 4 bytes at most. */
function benchLargestShare(ids: TrajectoryShape["ids"]): void {
  const bytesAt = (percent: number): number => {
    const shape = { turns: 50, finalTokens: 32_768, sampledShare: percent / 100, ids } as const;
    return wireBytes(encodeAll(wireTrajectory({ ...shape, logprobs: "random" }))) / 32_768;
  };
  let within = 0;
  let beyond = 100;
  while (beyond - within > 1) {
    const middle = (within + beyond) >> 1;
    if (bytesAt(middle) <= 4) within = middle;
    else beyond = middle;
  }
  const line = { bench: "largest sampled share within 4 bytes", ids, percent: within };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function benchTrajectory(shape: TrajectoryShape): void {
  const calls = wireTrajectory(shape);
  encodeAll(calls.slice(0, 20));
  const before = process.cpuUsage();
  const records = encodeAll(calls);
  const { user, system } = process.cpuUsage(before);
  const { ids, logprobs, sampledShare, turns, finalTokens } = shape;
  const line = {
    bench: "wire",
    ids,
    logprobs,
    sampledShare,
    turns,
    finalTokens,
    bytesPerFinalToken: round(wireBytes(records) / finalTokens),
    naiveBytesPerFinalToken: round(naiveBytes(calls) / finalTokens),
    encodeCpuMsPerCall: round((user + system) / 1000 / turns),
  };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Calls without a base, 64 prompt tokens and 16 sampled ones: what the sidecar does most often. */
function benchSmallCalls(): void {
  const shape = {
    turns: 1,
    finalTokens: 80,
    sampledShare: 0.2,
    ids: "text",
    logprobs: "random",
  } as const;
  const [call] = wireTrajectory(shape);
  if (call === undefined) return;
  const calls = Array.from({ length: 20_000 }, (_, i) => ({
    ...call,
    attemptId: `rollout-train-000123-07.${i}`,
  }));
  let bestMicros = Number.POSITIVE_INFINITY;
  let bytes = 0;
  for (let round = 0; round < 5; round += 1) {
    const before = process.cpuUsage();
    const records = encodeAll(calls);
    const { user, system } = process.cpuUsage(before);
    bestMicros = Math.min(bestMicros, (user + system) / calls.length);
    bytes = wireBytes(records);
  }
  const line = {
    bench: "small calls",
    promptTokens: 64,
    sampledTokens: 16,
    bytesPerCall: round(bytes / calls.length),
    encodeCpuMicrosPerCall: round(bestMicros),
  };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function benchStore(recordCount: number): Promise<void> {
  // 20 KB each and no bases: what a store without delta encoding would be given too.
  const random = seededRandom(3).next;
  const records = Array.from({ length: recordCount }, (_, i) => {
    const samplingJson = Array.from({ length: 20_000 / 8 }, () =>
      Math.floor(random() * 2 ** 32)
        .toString(16)
        .padStart(8, "0"),
    ).join("");
    const value = create(CallRecordSchema, {
      requestId: `request-${i}`,
      rolloutId: `r${i % 50}`,
      attemptId: `r${i % 50}-0`,
      samplingJson,
      delivered: true,
    });
    return create(RecordSchema, { seq: BigInt(i + 1), body: { case: "call", value } });
  });
  const rates: Record<string, number> = {};
  for (const durability of ["process", "power"] as const) {
    for (const batch of [1, 100]) {
      const directory = mkdtempSync(join(tmpdir(), "outrigger-bench-"));
      const database = await openDatabase({
        path: join(directory, "run.db"),
        durability,
        migrations,
      });
      const store = await openCallStore(database);
      const startedAt = performance.now();
      for (let at = 0; at < records.length; at += batch) {
        const part = records.slice(at, at + batch).map((record) => ({ spoolId: "s", record }));
        await store.appendRecords(part);
      }
      rates[`${durability}-${batch}`] = Math.round(
        records.length / ((performance.now() - startedAt) / 1000),
      );
      await database.destroy();
      rmSync(directory, { recursive: true });
    }
  }
  for (const durability of ["process", "power"]) {
    const grouped = rates[`${durability}-100`] as number;
    const single = rates[`${durability}-1`] as number;
    const line = {
      bench: "store",
      durability,
      recordBytes: 20_000,
      recordsPerSecondOneByOne: single,
      recordsPerSecondGroupsOf100: grouped,
      ratio: round(grouped / single),
    };
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
}

const round = (value: number): number => Math.round(value * 100) / 100;

export async function runIngestBench(): Promise<void> {
  benchWire();
  benchSmallCalls();
  await benchStore(1000);
}

if (import.meta.filename === process.argv[1]) await runIngestBench();
