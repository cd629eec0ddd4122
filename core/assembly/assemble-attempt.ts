import type { BreakKind, CaptureReport, LossReason } from "../capture-report.ts";
import { emptyCaptureReport } from "../capture-report.ts";
import { OutriggerError } from "../outrigger-error.ts";
import type { AssembledSample } from "./assembled-sample.ts";
import type { AssemblyOptions } from "./assembly-options.ts";
import { type BuiltRows, buildRows } from "./build-rows.ts";
import { canonicalCalls } from "./canonical-calls.ts";
import type { CapturedCall } from "./captured-call.ts";
import { classifyBreak, type DecodeIds } from "./classify-break.ts";
import { groupSamplings } from "./group-samplings.ts";
import { type LimitedTurns, limitTurns } from "./limit-turns.ts";
import { linkTurns, type Turn } from "./link-turns.ts";
import { type JudgedSampling, selectSamplings } from "./select-samplings.ts";
import { nearestContext, type TracedCall, traceCalls } from "./trace-calls.ts";

export interface AssembledAttempt {
  readonly samples: readonly AssembledSample[];
  readonly report: CaptureReport;
}

/**
 * Turns the calls of one attempt, in any order, into training rows: the prefix tree of their
 * contexts, one row per leaf, every sampled token trained exactly once in exactly the context it
 * was sampled in. Time and memory are linear in the number of tokens.
 *
 * @throws OutriggerError `mixed-attempts` where the calls belong to more than one attempt.
 */
export function assembleAttempt(
  records: readonly CapturedCall[],
  options: AssemblyOptions = {},
): AssembledAttempt {
  const first = records[0];
  if (first === undefined) return { samples: [], report: { ...emptyCaptureReport(), attempts: 1 } };
  const { rolloutId, attemptId } = first;
  for (const record of records) refuseOtherAttempt(record, rolloutId, attemptId);

  const { maxRowTokens = Number.POSITIVE_INFINITY, overLength = "truncate" } = options;
  const { calls, duplicates } = canonicalCalls(records);
  const traced = traceCalls(calls);
  const judged = selectSamplings(traced, groupSamplings(traced), {
    includeSideCalls: options.includeSideCalls ?? false,
  });
  const trainable = judged
    .filter((one) => one.verdict === "train")
    .map((one) => one.sampling.index);
  const { decode, maxDriftTokens = 4 } = options;
  const linked = linkTurns(traced, trainable, { decode, maxDriftTokens });
  const drifts = linked.filter((turn) => turn.trainedEnd < turn.end);
  const driftTokens = drifts.reduce((sum, turn) => sum + turn.end - turn.trainedEnd, 0);
  const limited = limitTurns(linked, maxRowTokens, overLength);
  const dropsRows = overLength === "drop-row";
  const rows = buildRows(rolloutId, attemptId, limited.turns, { maxRowTokens, dropsRows });
  const report = buildReport({
    records: records.length,
    duplicates,
    traced,
    judged,
    drift: { responses: drifts.length, tokens: driftTokens },
    limited,
    rows,
    breaks: countBreaks(traced, judged, decode),
  });
  return { samples: rows.samples, report };
}

function refuseOtherAttempt(record: CapturedCall, rolloutId: string, attemptId: string): void {
  if (record.rolloutId === rolloutId && record.attemptId === attemptId) return;
  throw new OutriggerError(
    "mixed-attempts",
    `call ${record.callId} is of attempt ${record.rolloutId}/${record.attemptId}, others are of ${rolloutId}/${attemptId}`,
    { origin: "controller", hint: "Assemble one attempt at a time, or use buildSamples." },
  );
}

function countBreaks(
  traced: readonly TracedCall[],
  judged: readonly JudgedSampling[],
  decode: DecodeIds | undefined,
): Record<BreakKind, number> {
  const breaks = { template: 0, "re-tokenisation": 0, "history-edited": 0 };
  for (const { sampling, verdict } of judged) {
    if (verdict !== "train" && verdict !== "incomplete") continue;
    const { call, promptNode, departure, neighbour } = traced[sampling.index] as TracedCall;
    const earlier = traced[neighbour]?.call;
    if (departure === null || earlier?.promptIds == null || earlier.responseIds === null) continue;
    // Nothing broke where the prompt extends a context at least up to the point of departure.
    const extended = nearestContext(promptNode, () => true)?.node.depth ?? 0;
    if (extended >= departure.depth) continue;
    const kind = classifyBreak(
      {
        earlierPrompt: earlier.promptIds,
        earlierResponse: earlier.responseIds,
        prompt: call.promptIds as Int32Array,
        shared: departure.depth,
      },
      decode,
    );
    if (kind !== null) breaks[kind]++;
  }
  return breaks;
}

interface AttemptFacts {
  readonly records: number;
  readonly duplicates: number;
  readonly traced: readonly TracedCall[];
  readonly judged: readonly JudgedSampling[];
  readonly drift: { readonly responses: number; readonly tokens: number };
  readonly limited: LimitedTurns;
  readonly rows: BuiltRows;
  readonly breaks: Record<BreakKind, number>;
}

function buildReport(facts: AttemptFacts): CaptureReport {
  const { traced, judged, limited, rows } = facts;
  const dropped = new Set<Turn>(rows.droppedTurns);
  const trained = limited.turns.filter((turn) => !dropped.has(turn));
  const conversations = trained.filter((turn) => turn.parent === null).length;
  const droppedTokens = sumTokens(rows.droppedTurns);
  const lost = { ...countLost(traced, judged), drift: facts.drift.tokens };
  lost["over-length"] += limited.lostTokens + droppedTokens;
  return {
    attempts: 1,
    calls: countCalls(facts, trained.length),
    tokens: {
      ...countSampled(traced, judged),
      trained: sumTokens(trained),
      lost,
      rows: rows.samples.reduce((sum, row) => sum + row.tokenIds.length, 0),
    },
    rows: rows.samples.length,
    conversations,
    merged: trained.length - conversations,
    branches: rows.samples.length - conversations,
    breaks: facts.breaks,
    absorbedDrifts: facts.drift.responses,
    overLength: {
      prompt: limited.prompt,
      response: limited.response + rows.droppedTurns.length,
      rows: rows.droppedRows,
    },
  };
}

function sumTokens(turns: readonly Turn[]): number {
  return turns.reduce((sum, turn) => sum + turn.trainedEnd - turn.start, 0);
}

function countCalls(facts: AttemptFacts, trained: number): CaptureReport["calls"] {
  const { traced, judged, records, duplicates } = facts;
  const count = (matches: (one: JudgedSampling) => boolean) => judged.filter(matches).length;
  const incomplete: Record<string, number> = {};
  let masked = 0;
  for (const { sampling } of judged) {
    const fitness = traced[sampling.index]?.fitness;
    if (fitness?.kind !== "masked" && fitness?.kind !== "partial") continue;
    incomplete[fitness.reason] = (incomplete[fitness.reason] ?? 0) + 1;
    if (fitness.kind === "masked") masked++;
  }
  return {
    records,
    duplicates,
    replays: traced.length - judged.length,
    samplings: judged.length,
    delivered: count((one) => one.isDelivered),
    proven: count((one) => one.isProven),
    undelivered: count((one) => one.verdict === "undelivered"),
    superseded: count((one) => one.verdict === "superseded"),
    sideCalls: count((one) => traced[one.sampling.index]?.call.sideCall === true),
    empty: count((one) => traced[one.sampling.index]?.fitness.kind === "empty"),
    masked,
    trained,
    incomplete,
  };
}

function countSampled(traced: readonly TracedCall[], judged: readonly JudgedSampling[]) {
  let sampled = 0;
  let withLogprobs = 0;
  for (const { sampling } of judged) {
    const record = traced[sampling.index] as TracedCall;
    const tokens = record.call.responseIds?.length ?? 0;
    sampled += tokens;
    if (record.fitness.kind === "trainable") withLogprobs += tokens;
  }
  return { sampled, withLogprobs };
}

function countLost(
  traced: readonly TracedCall[],
  judged: readonly JudgedSampling[],
): Record<LossReason, number> {
  const lost = { ...emptyCaptureReport().tokens.lost };
  for (const { sampling, verdict } of judged) {
    if (verdict === "train" || verdict === "empty") continue;
    lost[verdict] += traced[sampling.index]?.call.responseIds?.length ?? 0;
  }
  return lost;
}
