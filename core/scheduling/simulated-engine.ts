import { createEventHeap } from "./event-heap.ts";
import type { WorkloadRollout } from "./workload.ts";

/**
 * Which held call gets a free slot. `fifo` is what inference servers do by default; `oldest-first`
 * gives a call the admission number of its group as its priority.
 */
export type CallOrder = "fifo" | "oldest-first";

export interface SimulatedRollout {
  readonly rollout: WorkloadRollout;
  readonly admissionIndex: number;
  turn: number;
  /** `ended` is final; a queued or tool entry of another epoch is void. */
  phase: "queued" | "calling" | "tool" | "ended";
  epoch: number;
}

export interface SimulatedEngine {
  readonly inFlight: ReadonlySet<SimulatedRollout>;
  /** The rollout's next call waits for a slot and for the gate. */
  enqueue(rollout: SimulatedRollout): void;
  /** Takes a slot for the next waiting call; undefined when no slot or no call is there. */
  startNext(): SimulatedRollout | undefined;
  release(rollout: SimulatedRollout): void;
}

/** The inference server as the simulation sees it: slots, and a queue in front of them. */
export function createSimulatedEngine(slotCount: number, order: CallOrder): SimulatedEngine {
  const inFlight = new Set<SimulatedRollout>();
  const queue = createEventHeap<{ rollout: SimulatedRollout; epoch: number }>();
  return {
    inFlight,
    enqueue(rollout) {
      rollout.phase = "queued";
      const key = order === "fifo" ? 0 : rollout.admissionIndex;
      queue.push(key, { rollout, epoch: rollout.epoch });
    },
    startNext() {
      while (inFlight.size < slotCount) {
        const next = queue.pop()?.value;
        if (next === undefined) return undefined;
        if (next.epoch !== next.rollout.epoch) continue;
        next.rollout.phase = "calling";
        inFlight.add(next.rollout);
        return next.rollout;
      }
      return undefined;
    },
    release(rollout) {
      inFlight.delete(rollout);
    },
  };
}
