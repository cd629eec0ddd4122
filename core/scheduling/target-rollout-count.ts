/**
 * How many unfinished rollouts keep every slot of the engine busy, on average, when each spends
 * `callMs` in calls for every `toolMs` outside of them: slots / (call share).
 */
export function targetRolloutCount(slotCount: number, callMs: number, toolMs: number): number {
  return callMs > 0 ? Math.ceil((slotCount * (callMs + toolMs)) / callMs) : slotCount;
}
