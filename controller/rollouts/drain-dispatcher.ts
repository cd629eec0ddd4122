import { sleep } from "../../runtime/sleep.ts";
import type { RolloutDispatcher } from "./rollout-dispatcher.ts";

/**
 * Starts no attempt more; lets what runs end for so long; then ends it, to be re-queued.
 * `beforeWaiting` is awaited first: what running attempts may wait for themselves.
 */
export async function drainDispatcher(
  dispatcher: Pick<RolloutDispatcher, "close" | "destroy">,
  graceMs: number,
  beforeWaiting: () => Promise<void> = async () => undefined,
): Promise<void> {
  const isDrained = dispatcher.close().then(() => true);
  await beforeWaiting();
  const limit = new AbortController();
  const inTime = await Promise.race([isDrained, sleep(graceMs, limit.signal).then(() => false)]);
  if (!inTime) await dispatcher.destroy();
  limit.abort();
}
