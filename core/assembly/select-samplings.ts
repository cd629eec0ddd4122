import type { Sampling } from "./group-samplings.ts";
import { nearestContext, type TracedCall } from "./trace-calls.ts";

/** What becomes of a sampling. All but `train` are left out of the rows, each for its reason. */
export type Verdict = "train" | "empty" | "incomplete" | "undelivered" | "superseded" | "side-call";

export interface JudgedSampling {
  readonly sampling: Sampling;
  readonly verdict: Verdict;
  readonly isDelivered: boolean;
  /** Only a later prompt says that it was delivered and kept. */
  readonly isProven: boolean;
}

/**
 * Leaves a sampling out only on evidence: it was never delivered, or a marked retry took its place;
 * and in both cases only if no prompt goes on from exactly its context.
 */
export function selectSamplings(
  traced: readonly TracedCall[],
  samplings: readonly Sampling[],
  options: { readonly includeSideCalls: boolean },
): JudgedSampling[] {
  const proven = findProven(traced, samplings);
  return samplings.map((sampling) => {
    const isOwnRight = sampling.isDelivered && !sampling.isSuperseded;
    const isProven = !isOwnRight && proven.has(sampling);
    return {
      sampling,
      verdict: judge(traced, sampling, isProven, options.includeSideCalls),
      isDelivered: sampling.isDelivered || isProven,
      isProven,
    };
  });
}

function judge(
  traced: readonly TracedCall[],
  sampling: Sampling,
  isProven: boolean,
  includeSideCalls: boolean,
): Verdict {
  const record = traced[sampling.index] as TracedCall;
  if (!isProven && !sampling.isDelivered) return "undelivered";
  if (!isProven && sampling.isSuperseded) return "superseded";
  if (!includeSideCalls && record.call.sideCall === true) return "side-call";
  if (record.fitness.kind === "empty") return "empty";
  return record.fitness.kind === "trainable" ? "train" : "incomplete";
}

/**
 * Every prompt proves that the nearest context which it extends was delivered. Where several
 * samplings have that very context, the best of them explains the prompt: first one that counts
 * anyway. One proof, one sampling.
 */
function findProven(
  traced: readonly TracedCall[],
  samplings: readonly Sampling[],
): ReadonlySet<Sampling> {
  const samplingOf = new Map<number, Sampling>();
  for (const sampling of samplings) {
    for (const index of sampling.members) samplingOf.set(index, sampling);
  }
  const proven = new Set<Sampling>();
  for (const { promptNode } of traced) {
    const nearest = nearestContext(promptNode, () => true);
    const indexes = nearest?.node.contexts ?? [];
    const candidates = indexes.map((index) => samplingOf.get(index) as Sampling);
    const best = candidates.sort((a, b) => compareCandidates(traced, a, b))[0];
    if (best !== undefined) proven.add(best);
  }
  return proven;
}

function compareCandidates(traced: readonly TracedCall[], a: Sampling, b: Sampling): number {
  const isTrainable = (s: Sampling) => Number(traced[s.index]?.fitness.kind === "trainable");
  return (
    Number(b.isDelivered) - Number(a.isDelivered) ||
    Number(a.isSuperseded) - Number(b.isSuperseded) ||
    isTrainable(b) - isTrainable(a) ||
    b.index - a.index
  );
}
