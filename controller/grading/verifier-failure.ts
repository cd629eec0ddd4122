import { OutriggerError } from "../../core/outrigger-error.ts";
import type { StoredAttempt, StoredRollout } from "../store/rollout-store.ts";

/** Whether this is the `detail` of an attempt that the verifier failed to grade. */
export function isVerifierFailure(detail: string | undefined): boolean {
  return detail?.startsWith("verifier-") === true;
}

/** What ended rollouts say when the verifier graded none of them; undefined when it is not that. */
export async function verifierFailureOf(
  store: { attempts(rolloutId: string): Promise<readonly StoredAttempt[]> },
  rollouts: readonly Pick<StoredRollout, "rolloutId" | "reward">[],
): Promise<string | undefined> {
  if (rollouts.length === 0 || rollouts.some(({ reward }) => reward !== undefined))
    return undefined;
  let message: string | undefined;
  for (const { rolloutId } of rollouts) {
    const last = (await store.attempts(rolloutId)).at(-1);
    if (!isVerifierFailure(last?.detail)) return undefined;
    message ??= last?.message ?? last?.detail;
  }
  return message;
}

/** @param what `the evaluation before training`, `step 3` */
export function verifierFailed(what: string, count: number, message: string): OutriggerError {
  return new OutriggerError(
    "verifier-failed",
    `none of the ${count} rollouts of ${what} has a reward, because of the verifier: ${message}`,
    {
      origin: "user",
      hint: "Mend the verifier's program and --resume; where reward.verifier itself must change, start a new run.",
    },
  );
}
