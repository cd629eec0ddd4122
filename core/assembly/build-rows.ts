import type { AssembledSample, TrainedSpan } from "./assembled-sample.ts";
import type { Turn } from "./link-turns.ts";

export interface BuiltRows {
  readonly samples: readonly AssembledSample[];
  /** Rows left out because they exceed the limit. */
  readonly droppedRows: number;
  /** Turns that only such rows hold. */
  readonly droppedTurns: readonly Turn[];
}

/**
 * One row per leaf. A turn that several leaves share is trained in the row of the first of them in
 * order of time; in the others it is context. `maxRowTokens` here leaves whole rows out.
 */
export function buildRows(
  rolloutId: string,
  attemptId: string,
  turns: readonly Turn[],
  limits: { readonly maxRowTokens: number; readonly dropsRows: boolean },
): BuiltRows {
  const turnIndexes = new Map(turns.map((turn, index) => [turn, index]));
  const parents = new Set(turns.map((turn) => turn.parent));
  const untrained = new Set(turns);
  const samples: AssembledSample[] = [];
  let droppedRows = 0;
  for (const leaf of turns) {
    if (parents.has(leaf)) continue;
    if (limits.dropsRows && leaf.trainedEnd > limits.maxRowTokens) {
      droppedRows++;
      continue;
    }
    const spans: TrainedSpan[] = [];
    for (
      let turn: Turn | null = leaf;
      turn !== null && untrained.delete(turn);
      turn = turn.parent
    ) {
      spans.push(buildSpan(turn, turnIndexes.get(turn) as number));
    }
    samples.push(buildRow(rolloutId, attemptId, leaf, spans.reverse()));
  }
  return { samples, droppedRows, droppedTurns: [...untrained] };
}

function buildSpan(turn: Turn, turnIndex: number): TrainedSpan {
  const { call, start, trainedEnd: end, observationStart } = turn;
  return { call, start, end, observationStart, turnIndex };
}

function buildRow(
  rolloutId: string,
  attemptId: string,
  leaf: Turn,
  spans: readonly TrainedSpan[],
): AssembledSample {
  const length = leaf.trainedEnd;
  const prompt = leaf.call.promptIds as Int32Array;
  const response = leaf.call.responseIds as Int32Array;
  const tokenIds = new Int32Array(length);
  tokenIds.set(prompt);
  tokenIds.set(response.subarray(0, length - prompt.length), prompt.length);
  const lossMask = new Uint8Array(length);
  const samplingLogprobs = new Float32Array(length).fill(Number.NaN);
  const policyVersions = new Int32Array(length).fill(-1);
  for (const { call, start, end } of spans) {
    lossMask.fill(1, start, end);
    samplingLogprobs.set((call.logprobs as Float32Array).subarray(0, end - start), start);
    policyVersions.fill(call.policyVersion, start, end);
    for (const span of call.policyVersions ?? []) {
      policyVersions.fill(span.version, start + span.start, Math.min(start + span.end, end));
    }
  }
  const callIds = spans.map((span) => span.call.callId);
  return {
    rolloutId,
    attemptId,
    tokenIds,
    lossMask,
    samplingLogprobs,
    policyVersions,
    callIds,
    spans,
  };
}
