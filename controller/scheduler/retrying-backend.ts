import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import { sleep } from "../../runtime/sleep.ts";

export interface RetryingBackendOptions {
  /** Resolves when the backend answers (again). */
  ready(): Promise<void>;
  /** Once aborted nothing is tried again. */
  readonly signal: AbortSignal;
  readonly log: Logger;
}

const maxTries = 30;
const maxDelayMs = 2_000;

/**
 * A backend whose process may die and come back at any moment. Every method of the port may be
 * called again (an update by its id), so a retryable failure waits for the backend and tries again.
 */
export function retryingBackend(
  backend: TrainerBackend,
  options: RetryingBackendOptions,
): TrainerBackend {
  const retried = async <T>(method: string, call: () => Promise<T>): Promise<T> => {
    for (let tryIndex = 1; ; tryIndex += 1) {
      try {
        return await call();
      } catch (error) {
        const isRetryable = error instanceof OutriggerError && error.retryable;
        if (!isRetryable || tryIndex >= maxTries || options.signal.aborted) throw error;
        options.log.warn({ method, reason: error.reason }, "a backend call is made again");
        // Its death may be noticed here before whoever restarts it has seen it.
        await sleep(Math.min(maxDelayMs, 50 * 2 ** tryIndex), options.signal);
        await options.ready();
      }
    }
  };
  return {
    describe: (signal) => retried("describe", () => backend.describe(signal)),
    policyEndpoints: (signal) => retried("policyEndpoints", () => backend.policyEndpoints(signal)),
    update: (request, signal) => retried("update", () => backend.update(request, signal)),
    checkpoint: (name, signal) => retried("checkpoint", () => backend.checkpoint(name, signal)),
    restore: (name, signal) => retried("restore", () => backend.restore(name, signal)),
    rollBack: (name, toVersion, signal) =>
      retried("rollBack", () => backend.rollBack(name, toVersion, signal)),
    close: () => backend.close(),
  };
}
