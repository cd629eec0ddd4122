import type { Task } from "../experiment/read-tasks.ts";
import { taskOrder } from "../experiment/task-order.ts";
import type { RolloutDispatcher } from "../rollouts/rollout-dispatcher.ts";
import type { StepStore } from "../store/step-store.ts";
import type { ActiveGroups } from "./active-groups.ts";
import type { EmitScheduleEvent } from "./schedule-log.ts";

export interface GroupKeeperOptions {
  readonly groups: ActiveGroups;
  /** Groups that were ever admitted. */
  readonly admittedCount: number;
  readonly steps: StepStore;
  readonly dispatcher: Pick<RolloutDispatcher, "stop" | "wake">;
  readonly tasks: readonly Task[];
  readonly seed: number;
  readonly groupSize: number;
  readonly emit: EmitScheduleEvent;
  readonly warn: (message: string) => void;
  readonly now: () => number;
}

/** What the schedule's decisions do to groups. Tasks come round again for as long as they last. */
export interface GroupKeeper {
  admit(groupCount: number, version: number): Promise<void>;
  /** Gives a group up: its rollouts are ended and never trained. */
  drop(groupId: string, why?: string): Promise<void>;
  /** Ends the stragglers of a group. */
  cut(groupId: string): Promise<void>;
}

export function createGroupKeeper(options: GroupKeeperOptions): GroupKeeper {
  const { groups, dispatcher, emit, warn, now } = options;
  const taskOf = taskOrder(options.seed, options.tasks.length);
  let admittedCount = options.admittedCount;
  const admitOne = async (admittedVersion: number): Promise<void> => {
    const groupIndex = admittedCount;
    const groupId = `g${groupIndex}`;
    const { taskId, fields: input } = options.tasks[taskOf(groupIndex)] as Task;
    const rolloutIds = Array.from({ length: options.groupSize }, (_, i) => `${groupId}-${i}`);
    const of = { groupId, mode: "train", purpose: "train", taskId, input } as const;
    await options.steps.admitGroup(
      { groupId, groupIndex, taskId, admittedVersion },
      rolloutIds.map((rolloutId) => ({ rolloutId, ...of })),
      now(),
    );
    admittedCount += 1;
    const unfinished = new Set(rolloutIds);
    groups.add({ groupId, admittedVersion, rolloutIds, unfinished, lastProgressAtMs: now() });
    emit({ type: "admit", groupId });
  };
  return {
    admit: async (groupCount, version) => {
      for (let i = 0; i < groupCount; i += 1) await admitOne(version);
      dispatcher.wake();
    },
    drop: async (groupId, why = "became too stale") => {
      await options.steps.dropGroup(groupId);
      const group = groups.remove(groupId);
      emit({ type: "drop", groupId });
      warn(`group ${groupId} ${why} and was dropped`);
      for (const rolloutId of group?.unfinished ?? []) {
        await dispatcher.stop(rolloutId, "cancelled");
      }
    },
    cut: async (groupId) => {
      const group = groups.get(groupId);
      if (group === undefined) return;
      warn(`group ${groupId}: ${group.unfinished.size} stragglers were cut`);
      group.lastProgressAtMs = now();
      for (const rolloutId of Array.from(group.unfinished)) {
        await dispatcher.stop(rolloutId, "tail-cut");
      }
    },
  };
}
