import type { CapturedCall } from "./captured-call.ts";

export interface CanonicalCalls {
  /** One record per call id, in order of time. */
  readonly calls: readonly CapturedCall[];
  readonly duplicates: number;
}

/**
 * Absorbs at-least-once duplicates and puts the calls of one attempt into an order that does not
 * depend on arrival: by start, then the shorter prompt first (a turn comes before the turn that
 * goes on from it, also in traces with coarse clocks), then by id.
 */
export function canonicalCalls(records: readonly CapturedCall[]): CanonicalCalls {
  const byId = new Map<string, CapturedCall>();
  for (const record of records) {
    const known = byId.get(record.callId);
    if (known === undefined || compareRecords(record, known) < 0) byId.set(record.callId, record);
  }
  const calls = [...byId.values()].sort(compareCalls);
  return { calls, duplicates: records.length - calls.length };
}

function compareCalls(a: CapturedCall, b: CapturedCall): number {
  return (
    a.startedAt - b.startedAt ||
    (a.promptIds?.length ?? 0) - (b.promptIds?.length ?? 0) ||
    compareText(a.callId, b.callId)
  );
}

/** Negative where `a` is the better of two records with one call id; a total order on content. */
function compareRecords(a: CapturedCall, b: CapturedCall): number {
  return (
    Number(b.complete) - Number(a.complete) ||
    Number(b.delivered) - Number(a.delivered) ||
    b.finishedAt - a.finishedAt ||
    a.startedAt - b.startedAt ||
    a.policyVersion - b.policyVersion ||
    compareArrays(a.responseIds, b.responseIds) ||
    compareArrays(a.logprobs, b.logprobs) ||
    compareArrays(a.promptIds, b.promptIds) ||
    compareText(fingerprint(a), fingerprint(b))
  );
}

function fingerprint(call: CapturedCall): string {
  const { promptIds: _p, responseIds: _r, logprobs: _l, ...rest } = call;
  return JSON.stringify(Object.entries(rest).sort(([a], [b]) => compareText(a, b)));
}

function compareArrays(a: ArrayLike<number> | null, b: ArrayLike<number> | null): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (a.length !== b.length) return b.length - a.length;
  for (let i = 0; i < a.length; i++) {
    const x = a[i] as number;
    const y = b[i] as number;
    if (Object.is(x, y)) continue;
    if (Number.isNaN(x) || Number.isNaN(y))
      return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
    if (x !== y) return x - y;
  }
  return 0;
}

function compareText(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
