import type { FailurePolicy } from "../../core/rollouts/failure-policy.ts";
import type { RolloutStore } from "../store/rollout-store.ts";

/**
 * Attempts that an earlier session of `owner` left open are lost; the failure policy says what
 * follows. Those of others go on without us.
 */
export async function requeueLost(
  rollouts: RolloutStore,
  { owner, policy, nowMs }: { owner: string; policy: FailurePolicy; nowMs: number },
): Promise<void> {
  for (const { rolloutId, attemptId, leaseOwner } of await rollouts.openAttempts()) {
    if (leaseOwner !== owner) continue;
    await rollouts.end(
      rolloutId,
      { type: "lease-expired", attemptId },
      { detail: "controller-died", message: "the controller died while the attempt ran" },
      policy,
      nowMs,
    );
  }
}
