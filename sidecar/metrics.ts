import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { FinishedCall } from "./capture/finished-call.ts";

export interface GaugeReadings {
  readonly openCalls: number;
  readonly bufferedBytes: number;
  readonly inFlight: number;
  readonly held: number;
  readonly paused: boolean;
  readonly engines: readonly { readonly url: string; readonly isHealthy: boolean }[];
  readonly policyVersion: number;
  readonly spoolBytes: number;
  readonly droppedRecords: number;
}

export interface SidecarMetrics {
  noteCall(call: FinishedCall, wasKept: boolean): void;
  noteRefusal(reason: string): void;
  readonly calls: number;
  readonly incompleteCalls: number;
  text(): Promise<string>;
  readonly contentType: string;
}

const seconds = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600];

/** Prometheus metrics of one sidecar; gauges are read when they are asked for. */
export function createMetrics(read: () => GaugeReadings): SidecarMetrics {
  const registry = new Registry();
  const registers = [registry];
  const calls = createTally(
    registry,
    "calls_total",
    "Model calls that reached an engine, by how they ended",
    ["dialect", "stream_mode", "outcome"],
  );
  const incomplete = createTally(
    registry,
    "incomplete_choices_total",
    "Choices that cannot be trained on, by reason",
    ["reason"],
  );
  const tokens = createTally(registry, "tokens_total", "Captured tokens", ["kind"]);
  const refusals = new Counter({
    name: "outrigger_sidecar_refusals_total",
    help: "Requests that the sidecar itself refused, by reason",
    labelNames: ["reason"] as const,
    registers,
  });
  const lost = new Counter({
    name: "outrigger_sidecar_lost_records_total",
    help: "Records that could not be kept",
    registers,
  });
  const firstByte = new Histogram({
    name: "outrigger_sidecar_engine_first_byte_seconds",
    help: "Engine time to the first byte of an answer",
    buckets: seconds,
    registers,
  });
  const duration = new Histogram({
    name: "outrigger_sidecar_call_seconds",
    help: "Whole calls, as the harness saw them",
    buckets: seconds,
    registers,
  });
  registerGauges(registry, read);
  let callCount = 0;
  let incompleteCount = 0;
  return {
    noteCall: (call, wasKept) => {
      callCount += 1;
      const { dialect, streamMode, timing } = call;
      calls.add(1, dialect, streamMode, callOutcome(call));
      if (!wasKept) lost.inc();
      if (timing.sentAtMs !== undefined && timing.firstByteAtMs !== undefined)
        firstByte.observe((timing.firstByteAtMs - timing.sentAtMs) / 1000);
      duration.observe((timing.finishedAtMs - timing.receivedAtMs) / 1000);
      tokens.add(call.promptIds?.length ?? 0, "prompt");
      let isIncomplete = false;
      for (const choice of call.choices) {
        tokens.add(choice.responseIds?.length ?? 0, "response");
        if (choice.complete) continue;
        isIncomplete = true;
        incomplete.add(1, choice.incompleteReason ?? "unknown");
      }
      if (isIncomplete) incompleteCount += 1;
    },
    noteRefusal: (reason) => refusals.inc({ reason }),
    get calls() {
      return callCount;
    },
    get incompleteCalls() {
      return incompleteCount;
    },
    text: () => registry.metrics(),
    contentType: registry.contentType,
  };
}

interface Tally {
  add(amount: number, ...labels: readonly string[]): void;
}

/** A counter whose labels are put together when it is read, not on every call. */
function createTally(
  registry: Registry,
  name: string,
  help: string,
  labelNames: readonly string[],
): Tally {
  const counts: { readonly labels: readonly string[]; count: number }[] = [];
  new Counter({
    name: `outrigger_sidecar_${name}`,
    help,
    labelNames,
    registers: [registry],
    collect() {
      this.reset();
      for (const { labels, count } of counts)
        this.inc(
          Object.fromEntries(labelNames.map((label, at) => [label, labels[at] ?? ""])),
          count,
        );
    },
  });
  return {
    add: (amount, ...labels) => {
      // A handful of combinations: comparing them costs less than a key made of their names.
      for (const known of counts) {
        if (!haveSame(known.labels, labels)) continue;
        known.count += amount;
        return;
      }
      counts.push({ labels, count: amount });
    },
  };
}

function haveSame(a: readonly string[], b: readonly string[]): boolean {
  for (let index = 0; index < a.length; index += 1) if (a[index] !== b[index]) return false;
  return true;
}

function callOutcome(call: FinishedCall): string {
  if (call.replayOf !== undefined) return "replayed";
  if (call.errorReason !== undefined) return call.errorReason;
  return call.delivered ? "delivered" : "undelivered";
}

function registerGauges(registry: Registry, read: () => GaugeReadings): void {
  const gauge = (name: string, help: string, value: (readings: GaugeReadings) => number): void => {
    new Gauge({
      name: `outrigger_sidecar_${name}`,
      help,
      registers: [registry],
      collect() {
        this.set(value(read()));
      },
    });
  };
  gauge("open_calls", "Calls of harnesses in progress", (r) => r.openCalls);
  gauge("buffered_bytes", "Bytes of answers held in memory", (r) => r.bufferedBytes);
  gauge("in_flight", "Calls at an engine", (r) => r.inFlight);
  gauge("held", "Calls held by the gate", (r) => r.held);
  gauge("paused", "1 while the gate is paused", (r) => (r.paused ? 1 : 0));
  gauge("policy_version", "Current policy version", (r) => r.policyVersion);
  gauge("spool_bytes", "Bytes in the spool", (r) => r.spoolBytes);
  gauge("dropped_records", "Records dropped by a full spool", (r) => r.droppedRecords);
  new Gauge({
    name: "outrigger_sidecar_engine_healthy",
    help: "1 where the engine answers",
    labelNames: ["engine"] as const,
    registers: [registry],
    collect() {
      this.reset();
      for (const engine of read().engines) {
        this.set({ engine: engine.url }, engine.isHealthy ? 1 : 0);
      }
    },
  });
}
