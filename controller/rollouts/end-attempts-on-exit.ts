import process from "node:process";
import type { RolloutDispatcher } from "./rollout-dispatcher.ts";

/**
 * A second Ctrl-C ends this process at once: the attempts it runs get their SIGTERM even so, and
 * are re-queued by the next session. What is killed with SIGKILL cannot do this; `killLeftovers`
 * does it later.
 *
 * @returns takes it back
 */
export function endAttemptsOnExit(dispatcher: Pick<RolloutDispatcher, "destroy">): () => void {
  const onExit = (): void => void dispatcher.destroy();
  process.once("exit", onExit);
  return () => process.off("exit", onExit);
}
