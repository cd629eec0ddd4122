/** A call that a later request of the harness may repeat. */
export interface EarlierCall {
  readonly requestId: string;
  readonly body: Buffer;
  readonly state:
    | { readonly kind: "in-flight"; readonly canJoin: boolean }
    /** Whole, but the harness never got it: `canReplay` when it was kept. */
    | { readonly kind: "undelivered"; readonly canReplay: boolean; readonly endedAtMs: number }
    | { readonly kind: "ended"; readonly endedAtMs: number };
}

export interface RetryFacts {
  readonly body: Buffer;
  /** The harness says so (`x-stainless-retry-count` above 0), or the operator says always. */
  readonly isMarkedRetry: boolean;
  readonly nowMs: number;
  readonly windowMs: number;
}

export type RetryDecision<C extends EarlierCall> =
  | { readonly kind: "new" }
  /** Sampled anew, in place of an earlier call. */
  | { readonly kind: "again"; readonly earlier: C }
  | { readonly kind: "join"; readonly earlier: C }
  | { readonly kind: "replay"; readonly earlier: C };

/**
 * Whether a request repeats an earlier one of the same rollout and route, latest first. Only
 * marked retries do: equal requests without a mark are best-of-n or parallel calls, each its own.
 */
export function decideRetry<C extends EarlierCall>(
  earlierCalls: readonly C[],
  facts: RetryFacts,
): RetryDecision<C> {
  if (!facts.isMarkedRetry) return { kind: "new" };
  for (let index = earlierCalls.length - 1; index >= 0; index -= 1) {
    const earlier = earlierCalls[index] as C;
    const { state } = earlier;
    if (state.kind !== "in-flight" && facts.nowMs - state.endedAtMs > facts.windowMs) continue;
    if (!earlier.body.equals(facts.body)) continue;
    if (state.kind === "in-flight" && state.canJoin) return { kind: "join", earlier };
    if (state.kind === "undelivered" && state.canReplay) return { kind: "replay", earlier };
    return { kind: "again", earlier };
  }
  return { kind: "new" };
}
