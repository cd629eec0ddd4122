import { OutriggerError } from "../outrigger-error.ts";
import type { ScheduleGroup, ScheduleState } from "./schedule-state.ts";

/** The two numbers that the bound is made of; derived in docs/decisions/staleness-bound.md. */
export interface StalenessRule {
  readonly groupsPerStep: number;
  /** k: an update from version v trains a group only if v - its earliest version <= k. */
  readonly maxStaleness: number;
}

/** The last version that an update may start from to train this group. */
export function dueVersion(
  group: ScheduleGroup,
  currentVersion: number,
  rule: StalenessRule,
): number {
  // A group without a call cannot be older than now.
  return (group.earliestVersion ?? currentVersion) + rule.maxStaleness;
}

/**
 * Whether every unconsumed group can still be trained in time once an update from `version` has
 * started: for every j >= 0 at most j · groupsPerStep of them are due by version + j.
 */
export function isTrainableAfterUpdate(
  remaining: readonly ScheduleGroup[],
  version: number,
  rule: StalenessRule,
): boolean {
  const dueCounts = Array.from({ length: rule.maxStaleness + 1 }, () => 0);
  for (const group of remaining) {
    const slack = Math.min(
      rule.maxStaleness,
      Math.max(0, dueVersion(group, version, rule) - version),
    );
    dueCounts[slack] = (dueCounts[slack] ?? 0) + 1;
  }
  let dueSoFar = 0;
  return dueCounts.every((count, j) => {
    dueSoFar += count;
    return dueSoFar <= j * rule.groupsPerStep;
  });
}

/**
 * How many more groups may make their first call now. They are due by version + k; the updates
 * that can still take them are version .. version + k, without the one that already started.
 */
export function admissionRoom(state: ScheduleState, rule: StalenessRule): number {
  const updateCount = rule.maxStaleness + (state.trainer.state === "idle" ? 1 : 0);
  return Math.max(0, updateCount * rule.groupsPerStep - state.groups.length);
}

/** The complete groups, oldest version first, then oldest admission first. */
export function completeOldestFirst(state: ScheduleState): readonly ScheduleGroup[] {
  return state.groups
    .filter((group) => group.unfinishedRolloutCount === 0)
    .toSorted(
      (a, b) => (a.earliestVersion ?? state.version) - (b.earliestVersion ?? state.version),
    );
}

/**
 * The run-time assertion of the bound, made on every update just before it starts.
 * @throws OutriggerError `staleness-bound-broken` (controller)
 */
export function assertStaleness(
  groups: readonly ScheduleGroup[],
  version: number,
  rule: StalenessRule,
): void {
  for (const group of groups) {
    const staleness = version - (group.earliestVersion ?? version);
    if (staleness <= rule.maxStaleness) continue;
    throw new OutriggerError(
      "staleness-bound-broken",
      `update from version ${version} would train group ${group.groupId} at staleness ${staleness}, above the bound ${rule.maxStaleness}`,
      { origin: "controller", hint: "This is a defect of the scheduler; report it with the log." },
    );
  }
}
