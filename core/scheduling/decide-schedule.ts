import type { ScheduleGroup, ScheduleState } from "./schedule-state.ts";
import {
  admissionRoom,
  assertStaleness,
  completeOldestFirst,
  dueVersion,
  isTrainableAfterUpdate,
  type StalenessRule,
} from "./staleness-rule.ts";

/**
 * `sync`: one batch is admitted, completed and trained before the next.
 * `collocated-async`: sampling and training share a device; more groups are active than one update
 * needs, an update pauses and drains the engine.
 * `async`: the trainer has its own device; only publishing shuts the gate.
 */
export type ScheduleKind = "sync" | "collocated-async" | "async";

/**
 * What is done with stragglers that hold up an update. `cut` ends the unfinished rollouts of a
 * group once `minFinishedShare` of it has ended and nothing of it has ended for `graceMs`, while no
 * update can start without it. It shortens what is trained: the report's length bias shows how far.
 */
export type TailPolicy =
  | { readonly kind: "wait" }
  | { readonly kind: "cut"; readonly minFinishedShare: number; readonly graceMs: number };

export interface ScheduleSettings {
  readonly kind: ScheduleKind;
  readonly groupsPerStep: number;
  /** k, in versions; `sync` is always 0. */
  readonly maxStaleness: number;
  /** `wait` keeps every group and holds updates up for it; `drop` gives groups above k up. */
  readonly onStale: "wait" | "drop";
  readonly tail: TailPolicy;
  /**
   * Unfinished rollouts below which another group is admitted. Enough to keep the engine's slots
   * full while some rollouts run tools; more only makes groups older while their calls queue.
   */
  readonly targetRolloutCount: number;
}

/** What the shell is to do, in this order; each becomes an event of the log. */
export type ScheduleAction =
  | { readonly type: "admit"; readonly groupCount: number }
  | { readonly type: "pause" }
  | {
      readonly type: "start-update";
      readonly version: number;
      readonly groupIds: readonly string[];
    }
  | { readonly type: "publish"; readonly version: number }
  | { readonly type: "resume" }
  | { readonly type: "drop"; readonly groupId: string }
  /** End the unfinished rollouts of this group and count it complete. */
  | { readonly type: "cut"; readonly groupId: string }
  /** Ask again at this time at the latest. */
  | { readonly type: "wake"; readonly atMs: number };

/**
 * What to do now. Asked again after every event until it answers nothing; the same function
 * serves the controller and the simulator. It remembers nothing: the state is all there is.
 */
export function decideSchedule(
  state: ScheduleState,
  settings: ScheduleSettings,
): readonly ScheduleAction[] {
  const rule = stalenessRuleOf(settings);
  const drops = staleGroups(state, rule, settings);
  if (drops.length > 0) return drops.map(({ groupId }) => ({ type: "drop", groupId }));
  if (state.trainer.state === "stepped") return publish(state, settings);
  const update = selectUpdate(state, rule, settings);
  if (update !== undefined) return startUpdate(state, update, rule, settings);
  const isHeldByTrainer = state.trainer.state !== "idle" && state.gate !== "open";
  if (isHeldByTrainer || state.stepsLeft === 0) return [];
  const groupCount = admissionCount(state, rule, settings);
  const actions: ScheduleAction[] = [];
  if (groupCount > 0) actions.push({ type: "admit", groupCount });
  if (state.gate !== "open") actions.push({ type: "resume" });
  return actions.length > 0 ? actions : tailActions(state, rule, settings);
}

export function stalenessRuleOf(settings: ScheduleSettings): StalenessRule {
  const { groupsPerStep, maxStaleness } = settings;
  return { groupsPerStep, maxStaleness: settings.kind === "sync" ? 0 : maxStaleness };
}

/** The groups that no update from now on may train. With `wait` the rule leaves none. */
function staleGroups(
  state: ScheduleState,
  rule: StalenessRule,
  settings: ScheduleSettings,
): readonly ScheduleGroup[] {
  if (settings.onStale === "wait") return [];
  // While an update runs the next one starts from version + 1.
  const next = state.version + (state.trainer.state === "idle" ? 0 : 1);
  return state.groups.filter((g) => next - (g.earliestVersion ?? next) > rule.maxStaleness);
}

function publish(state: ScheduleState, settings: ScheduleSettings): readonly ScheduleAction[] {
  const publication: ScheduleAction = { type: "publish", version: state.version + 1 };
  return settings.kind === "async" && state.gate === "open"
    ? [{ type: "pause" }, publication]
    : [publication];
}

/** The groups of the update that can start now; undefined when none can. */
function selectUpdate(
  state: ScheduleState,
  rule: StalenessRule,
  settings: ScheduleSettings,
): readonly ScheduleGroup[] | undefined {
  if (state.trainer.state !== "idle" || state.stepsLeft === 0) return undefined;
  const complete = completeOldestFirst(state);
  // When nothing is left to come the last update takes what there is.
  const isLast = state.waitingGroupCount === 0 && state.groups.length <= rule.groupsPerStep;
  const wanted = isLast ? state.groups.length : rule.groupsPerStep;
  if (wanted === 0 || complete.length < wanted) return undefined;
  const selected = complete.slice(0, wanted);
  if (settings.onStale === "drop") return selected;
  const taken = new Set(selected);
  const remaining = state.groups.filter((group) => !taken.has(group));
  return isTrainableAfterUpdate(remaining, state.version, rule) ? selected : undefined;
}

function startUpdate(
  state: ScheduleState,
  groups: readonly ScheduleGroup[],
  rule: StalenessRule,
  settings: ScheduleSettings,
): readonly ScheduleAction[] {
  if (settings.kind !== "async" && state.gate === "open") return [{ type: "pause" }];
  if (settings.kind !== "async" && state.gate === "draining") return [];
  assertStaleness(groups, state.version, rule);
  const groupIds = groups.map((group) => group.groupId);
  return [{ type: "start-update", version: state.version, groupIds }];
}

/** A capacity rule (the staleness bound) and a demand rule (the engine's slots), whichever is less. */
function admissionCount(
  state: ScheduleState,
  rule: StalenessRule,
  settings: ScheduleSettings,
): number {
  const updatesToCome = state.stepsLeft - (state.trainer.state === "idle" ? 0 : 1);
  const wanted = updatesToCome * rule.groupsPerStep - state.groups.length;
  const room = Math.min(wanted, admissionRoom(state, rule), state.waitingGroupCount);
  if (room <= 0) return 0;
  if (settings.kind === "sync") return room;
  const unfinished = state.groups.reduce((sum, group) => sum + group.unfinishedRolloutCount, 0);
  return unfinished < settings.targetRolloutCount ? 1 : 0;
}

function tailActions(
  state: ScheduleState,
  rule: StalenessRule,
  settings: ScheduleSettings,
): readonly ScheduleAction[] {
  const { tail } = settings;
  if (tail.kind === "wait" || state.trainer.state !== "idle") return [];
  const incomplete = state.groups.filter((group) => group.unfinishedRolloutCount > 0);
  const due = (group: ScheduleGroup) => dueVersion(group, state.version, rule);
  const oldestDue = Math.min(...incomplete.map(due));
  const isShortOfGroups = completeOldestFirst(state).length < rule.groupsPerStep;
  // With enough complete groups only the oldest incomplete ones can be what blocks the update.
  const candidates = incomplete.filter((group) => {
    const finishedShare = 1 - group.unfinishedRolloutCount / group.rolloutCount;
    return finishedShare >= tail.minFinishedShare && (isShortOfGroups || due(group) === oldestDue);
  });
  const readyAt = (group: ScheduleGroup) => group.lastProgressAtMs + tail.graceMs;
  const ready = candidates.find((group) => readyAt(group) <= state.nowMs);
  if (ready !== undefined) return [{ type: "cut", groupId: ready.groupId }];
  const first = Math.min(...candidates.map(readyAt));
  return Number.isFinite(first) ? [{ type: "wake", atMs: first }] : [];
}
