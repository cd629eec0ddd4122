import { setTimeout as wait } from "node:timers/promises";

/** Resolves after `ms`, or at once (without throwing) when the signal aborts. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  try {
    await wait(ms, undefined, signal === undefined ? {} : { signal });
  } catch {
    // Aborted: the caller looks at its signal.
  }
}
