import { hasSignal } from "./group-advantages.ts";
import { type CreditSettings, rolloutValues } from "./rollout-values.ts";
import type { CreditedRollout } from "./step-advantages.ts";

/**
 * True where a group teaches nothing under a group-relative estimator: its counted rollouts have
 * equal values, or fewer than two of them have any. Dynamic filtering (DAPO, arXiv 2503.14476)
 * leaves such groups out of the step.
 */
export function isZeroSignal(
  group: readonly CreditedRollout[],
  credit: CreditSettings = { kind: "outcome" },
): boolean {
  const values = group
    .filter((rollout) => rollout.isInBaseline)
    .map((rollout) => rolloutValues(rollout, rollout.turnStartsMs, credit))
    .filter((one) => one !== undefined);
  return !hasSignal(values);
}
