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
import { create, toBinary } from "@bufbuild/protobuf";
import { openCallStore } from "../controller/store/call-store.ts";
import { migrations } from "../controller/store/migrations.ts";
import { openDatabase } from "../controller/store/open-database.ts";
import { CallRecordSchema } from "../proto/gen/outrigger/v1/record_pb.ts";
import {
  RecordSchema,
  type Record as SpooledRecord,
} from "../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { FinishedCall } from "../sidecar/capture/finished-call.ts";
import { connectRequestBytes } from "../sidecar/uplink/connect-request-bytes.ts";
import { createRecordEncoder } from "../sidecar/uplink/record-encoder.ts";

const vocabulary = 151_936;

/** A small deterministic generator (mulberry32). */
function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Ids by rank as in text (density 1/rank), or uniform over the vocabulary: the worst case. */
const idSources = {
  text: (random: () => number) => Math.floor(vocabulary ** random()),
  uniform: (random: () => number) => Math.floor(random() * vocabulary),
} as const;

interface TrajectoryShape {
  readonly turns: number;
  readonly finalTokens: number;
  /** Part of what a turn adds that the policy sampled. */
  readonly sampledShare: number;
  readonly ids: keyof typeof idSources;
}

/** A trajectory with ids and names of the lengths that real ones have. */
function trajectory(shape: TrajectoryShape, name: string): FinishedCall[] {
  const random = seeded(17);
  const draw = (count: number): number[] =>
    Array.from({ length: count }, () => idSources[shape.ids](random));
  const perTurn = shape.finalTokens / shape.turns;
  const sampled = Math.round(perTurn * shape.sampledShare);
  const calls: FinishedCall[] = [];
  let context: number[] = [];
  for (let turn = 0; turn < shape.turns; turn += 1) {
    const prompt = Int32Array.from([
      ...context,
      ...draw(Math.round(perTurn * (turn + 1)) - context.length - sampled),
    ]);
    const response = draw(sampled);
    const requestId = `6f9619ff-8b86-4d01-b42d-${name}${String(turn).padStart(4, "0")}`;
    const startedAt = 1_767_225_600_000 + turn * 5000 + random();
    calls.push({
      requestId,
      rolloutId: "rollout-train-000123-07",
      attemptId: "rollout-train-000123-07-0",
      dialect: "chat",
      streamMode: "relayed",
      model: "Qwen/Qwen3-8B",
      policyVersion: 12,
      promptIds: prompt,
      choices: [
        {
          callId: `${requestId}.0`,
          index: 0,
          responseIds: Int32Array.from(response),
          logprobs: Float32Array.from(response, () => Math.log(1 - random())),
          finishReason: "tool_calls",
          stopReason: null,
          policyVersions: [{ version: 12, start: 0, end: response.length }],
          complete: true,
        },
      ],
      usage: { promptTokens: prompt.length, completionTokens: response.length },
      delivered: true,
      httpStatus: 200,
      timing: {
        receivedAtMs: startedAt,
        sentAtMs: startedAt + random(),
        firstByteAtMs: startedAt + 100 * random(),
        finishedAtMs: startedAt + 4000 * random() + 200,
        heldMs: 0,
      },
      droppedRequestParts: [],
      sessionId: "0199a6c0-4f5e-7c1a-9a51-3a1d5f0e7b11",
      engine: "http://10.0.3.17:8000/v1",
      samplingJson: '{"temperature":1,"top_p":1,"max_tokens":4096}',
    });
    context = [...prompt, ...response];
  }
  return calls;
}

/** gRPC puts 5 bytes before a message, HTTP/2 9 before each DATA frame of at most 16 KiB. */
const framedBytes = (message: number): number =>
  message + 5 + 9 * Math.ceil((message + 5) / 16_384);

function encodeAll(calls: readonly FinishedCall[]): SpooledRecord[] {
  const encoder = createRecordEncoder();
  return calls.map((call, i) => {
    const { record, remember } = encoder.encode(call, {});
    remember();
    return create(RecordSchema, { seq: BigInt(i + 1), body: { case: "call", value: record } });
  });
}

const wireBytes = (records: readonly SpooledRecord[]): number =>
  records.reduce(
    (sum, r) =>
      sum + framedBytes(connectRequestBytes({ recordBytes: toBinary(RecordSchema, r) }).length),
    0,
  );

/** Every call in full, ids and logprobs as 4 bytes each: what a capture without deltas sends. */
function naiveBytes(calls: readonly FinishedCall[]): number {
  return calls.reduce((sum, call) => {
    const sampled = call.choices.reduce((n, c) => n + (c.responseIds?.length ?? 0), 0);
    return sum + framedBytes(4 * (call.promptIds?.length ?? 0) + 8 * sampled + 400);
  }, 0);
}

function benchWire(): void {
  for (const ids of ["text", "uniform"] as const) {
    for (const sampledShare of [0.1, 0.25, 0.4]) {
      const calls = trajectory({ turns: 50, finalTokens: 32_768, sampledShare, ids }, "wire");
      encodeAll(calls.slice(0, 20));
      const before = process.cpuUsage();
      const records = encodeAll(calls);
      const { user, system } = process.cpuUsage(before);
      const encodeMs = (user + system) / 1000;
      const bytes = wireBytes(records);
      const line = {
        bench: "wire",
        ids,
        sampledShare,
        turns: 50,
        finalTokens: 32_768,
        bytesPerFinalToken: round(bytes / 32_768),
        naiveBytesPerFinalToken: round(naiveBytes(calls) / 32_768),
        encodeCpuMsPerCall: round(encodeMs / 50),
      };
      process.stdout.write(`${JSON.stringify(line)}\n`);
    }
  }
}

async function benchStore(recordCount: number): Promise<void> {
  // 20 KB each and no bases: what a store without delta encoding would be given too.
  const random = seeded(3);
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
  await benchStore(1000);
}

if (import.meta.filename === process.argv[1]) await runIngestBench();
