import type { CapturedCall } from "./captured-call.ts";
import type { TracedCall } from "./trace-calls.ts";

/** One choice that an engine sampled, though several records may show it. */
export interface Sampling {
  /** Indexes of its records, in order of time. */
  readonly members: readonly number[];
  /** The record that stands for it. */
  readonly index: number;
  readonly isDelivered: boolean;
  /** Every record of it is repeated by a marked retry. */
  readonly isSuperseded: boolean;
}

/**
 * Finds the records that show one sampling: same request (followed through `retryOf`), same choice
 * and the very same prompt, ids, logprobs and versions. Equal calls without such a mark are
 * samplings of their own, however equal: parallel identical calls are ordinary.
 */
export function groupSamplings(traced: readonly TracedCall[]): Sampling[] {
  const repeated = new Map<string, string>();
  for (const { call } of traced) {
    if (call.retryOf !== undefined && call.retryOf !== call.requestId) {
      repeated.set(call.requestId, call.retryOf);
    }
  }
  const supersededRequests = new Set(repeated.values());
  const groups = new Map<string, number[][]>();
  traced.forEach(({ call }, index) => {
    const key = JSON.stringify([findFirstRequest(call.requestId, repeated), call.choiceIndex]);
    const variants = groups.get(key) ?? [];
    const same = variants.find(([first]) => showsSameAnswer(traced[first as number]?.call, call));
    if (same === undefined) variants.push([index]);
    else same.push(index);
    groups.set(key, variants);
  });
  const samplings = [...groups.values()].flat().map((members) => ({
    members,
    index:
      members.find((index) => traced[index]?.fitness.kind === "trainable") ??
      (members[0] as number),
    isDelivered: members.some((index) => traced[index]?.call.delivered),
    isSuperseded: members.every((index) =>
      supersededRequests.has(traced[index]?.call.requestId as string),
    ),
  }));
  return samplings.sort((a, b) => a.index - b.index);
}

function findFirstRequest(requestId: string, repeated: ReadonlyMap<string, string>): string {
  const seen = new Set([requestId]);
  let first = requestId;
  for (;;) {
    const earlier = repeated.get(first);
    if (earlier === undefined) return first;
    if (seen.has(earlier)) return [...seen].sort()[0] as string;
    seen.add(earlier);
    first = earlier;
  }
}

function showsSameAnswer(a: CapturedCall | undefined, b: CapturedCall): boolean {
  return (
    a !== undefined &&
    a.responseIds !== null &&
    a.responseIds.length > 0 &&
    a.logprobs !== null &&
    hasSameValues(a.responseIds, b.responseIds) &&
    hasSameValues(a.logprobs, b.logprobs) &&
    hasSameValues(a.promptIds, b.promptIds)
  );
}

function hasSameValues(a: ArrayLike<number> | null, b: ArrayLike<number> | null): boolean {
  if (a === null || b === null || a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (!Object.is(a[i], b[i])) return false;
  return true;
}
