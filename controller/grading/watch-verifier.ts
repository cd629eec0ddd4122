import type { Logger } from "../../runtime/log.ts";
import type { DispatcherOptions } from "../rollouts/rollout-dispatcher.ts";
import { isVerifierFailure } from "./verifier-failure.ts";

type RunAttempt = DispatcherOptions["runAttempt"];

/** Says at once, on screen, that the verifier fails and why; the later times are in the log only. */
export function watchVerifier(
  run: RunAttempt,
  { warn, log }: { readonly warn: (message: string) => void; readonly log: Pick<Logger, "warn"> },
): RunAttempt {
  let isSaid = false;
  return async (rollout, attemptId, ...rest) => {
    const result = await run(rollout, attemptId, ...rest);
    if (isVerifierFailure(result.detail)) {
      const { detail, message } = result;
      log.warn({ rolloutId: rollout.rolloutId, attemptId, detail, message }, "not graded");
      if (!isSaid) warn(`attempt ${attemptId} was not graded: ${message ?? detail}`);
      isSaid = true;
    }
    return result;
  };
}
