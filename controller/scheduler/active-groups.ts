import type { ScheduleGroup } from "../../core/scheduling/schedule-state.ts";
import type { RolloutStore } from "../store/rollout-store.ts";
import type { StepStore } from "../store/step-store.ts";

export interface ActiveGroup {
  readonly groupId: string;
  /** None of its calls is older. */
  readonly admittedVersion: number;
  readonly rolloutIds: readonly string[];
  readonly unfinished: Set<string>;
  lastProgressAtMs: number;
}

/** The admitted groups that no update has taken yet, as the schedule sees them. */
export interface ActiveGroups {
  add(group: ActiveGroup): void;
  get(groupId: string): ActiveGroup | undefined;
  remove(groupId: string): ActiveGroup | undefined;
  /** False for a rollout of no active group. */
  rolloutEnded(rolloutId: string, reward: number | undefined, atMs: number): boolean;
  /** Times count from `startMs`. */
  toSchedule(startMs: number): readonly ScheduleGroup[];
  progress(version: number): {
    readonly rolloutsDone: number;
    readonly meanReward: number | null;
    /** Of the oldest group, in versions. */
    readonly staleness: number;
  };
}

export function createActiveGroups(): ActiveGroups {
  const groups = new Map<string, ActiveGroup>();
  const groupOf = new Map<string, ActiveGroup>();
  const rewards = new Map<string, number>();
  return {
    add: (group) => {
      groups.set(group.groupId, group);
      for (const rolloutId of group.rolloutIds) groupOf.set(rolloutId, group);
    },
    get: (groupId) => groups.get(groupId),
    remove: (groupId) => {
      const group = groups.get(groupId);
      groups.delete(groupId);
      for (const rolloutId of group?.rolloutIds ?? []) {
        groupOf.delete(rolloutId);
        rewards.delete(rolloutId);
      }
      return group;
    },
    rolloutEnded: (rolloutId, reward, atMs) => {
      const group = groupOf.get(rolloutId);
      if (group === undefined || !group.unfinished.delete(rolloutId)) return false;
      group.lastProgressAtMs = atMs;
      if (reward !== undefined) rewards.set(rolloutId, reward);
      return true;
    },
    toSchedule: (startMs) =>
      Array.from(groups.values(), (group) => ({
        groupId: group.groupId,
        earliestVersion: group.admittedVersion,
        rolloutCount: group.rolloutIds.length,
        unfinishedRolloutCount: group.unfinished.size,
        lastProgressAtMs: group.lastProgressAtMs - startMs,
      })),
    progress: (version) => {
      let rolloutsDone = 0;
      let oldest = version;
      for (const group of groups.values()) {
        rolloutsDone += group.rolloutIds.length - group.unfinished.size;
        oldest = Math.min(oldest, group.admittedVersion);
      }
      let sum = 0;
      for (const reward of rewards.values()) sum += reward;
      const meanReward = rewards.size === 0 ? null : sum / rewards.size;
      return { rolloutsDone, meanReward, staleness: version - oldest };
    },
  };
}

/** The groups that an earlier session left, with the rollouts that are not over. */
export async function loadActiveGroups(
  stores: { readonly steps: StepStore; readonly rollouts: RolloutStore },
  nowMs: number,
): Promise<ActiveGroups> {
  const active = createActiveGroups();
  for (const { groupId, admittedVersion } of await stores.steps.activeGroups()) {
    const members = await stores.rollouts.list({ groupId });
    const rolloutIds = members.map((rollout) => rollout.rolloutId);
    const unfinished = new Set(rolloutIds);
    active.add({ groupId, admittedVersion, rolloutIds, unfinished, lastProgressAtMs: nowMs });
    for (const { rolloutId, terminalSeq, reward } of members) {
      if (terminalSeq !== undefined) active.rolloutEnded(rolloutId, reward, nowMs);
    }
  }
  return active;
}
