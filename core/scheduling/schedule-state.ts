import type { ScheduleEvent } from "./schedule-event.ts";

/** A group that was admitted and is neither being trained, trained nor dropped. */
export interface ScheduleGroup {
  readonly groupId: string;
  /**
   * The lowest policy version that any of its calls started at; absent before its first call.
   * A shell that learns of calls late must give the version at admission instead: a lower
   * number is always safe, a missed call is not.
   */
  readonly earliestVersion?: number;
  readonly rolloutCount: number;
  /** 0 = complete. */
  readonly unfinishedRolloutCount: number;
  /** When the last of its rollouts so far ended (or it was admitted), ms. */
  readonly lastProgressAtMs: number;
}

/** `open`: calls start. `draining`: new calls are held. `drained`: held, and none is in flight. */
export type GateState = "open" | "draining" | "drained";

/** `stepped`: the optimizer step is done and its policy not yet published. */
export type TrainerState =
  | { readonly state: "idle" }
  | {
      readonly state: "stepping" | "stepped" | "publishing";
      readonly groupIds: readonly string[];
    };

/**
 * The facts that a schedule is decided from. It is the fold of the schedule's log
 * (`applyScheduleEvent`), so a restart rebuilds it from what was made durable.
 */
export interface ScheduleState {
  /** Of the last event; whoever asks for a decision later sets it to the current time. */
  readonly nowMs: number;
  readonly version: number;
  /** Updates that are still wanted, the one in progress included. */
  readonly stepsLeft: number;
  /** Groups that have not been admitted yet. */
  readonly waitingGroupCount: number;
  /** In order of admission. */
  readonly groups: readonly ScheduleGroup[];
  readonly gate: GateState;
  readonly trainer: TrainerState;
}

export interface ScheduleRegistry {
  readonly stepCount: number;
  readonly groupCount: number;
  rolloutCountOf(groupId: string): number;
  groupIdOf(rolloutId: string): string;
}

export function initialScheduleState(registry: ScheduleRegistry): ScheduleState {
  return {
    nowMs: 0,
    version: 0,
    stepsLeft: registry.stepCount,
    waitingGroupCount: registry.groupCount,
    groups: [],
    gate: "open",
    trainer: { state: "idle" },
  };
}

/** The state after one more event. Events of groups that are no longer here change nothing. */
export function applyScheduleEvent(
  before: ScheduleState,
  event: ScheduleEvent,
  registry: ScheduleRegistry,
): ScheduleState {
  const state = { ...before, nowMs: event.t };
  switch (event.type) {
    case "admit":
      return admit(state, event.groupId, registry);
    case "call-start":
      return noteCall(state, registry.groupIdOf(event.rolloutId), event.version);
    case "call-end":
    case "call-abort":
      return state;
    case "rollout-end":
      return noteRolloutEnd(state, registry.groupIdOf(event.rolloutId));
    case "pause":
      return { ...state, gate: "draining" };
    case "drained":
      return { ...state, gate: "drained" };
    case "resume":
      return { ...state, gate: "open" };
    case "train-start": {
      const taken = new Set(event.groups);
      const groups = state.groups.filter((group) => !taken.has(group.groupId));
      return { ...state, groups, trainer: { state: "stepping", groupIds: event.groups } };
    }
    case "train-end":
      return state.trainer.state === "stepping"
        ? { ...state, trainer: { ...state.trainer, state: "stepped" } }
        : state;
    case "publish":
      return {
        ...state,
        version: event.version,
        stepsLeft: Math.max(0, state.stepsLeft - 1),
        trainer: { state: "idle" },
      };
    case "drop":
      return { ...state, groups: state.groups.filter((g) => g.groupId !== event.groupId) };
  }
}

function admit(state: ScheduleState, groupId: string, registry: ScheduleRegistry): ScheduleState {
  const rolloutCount = registry.rolloutCountOf(groupId);
  const group: ScheduleGroup = {
    groupId,
    rolloutCount,
    unfinishedRolloutCount: rolloutCount,
    lastProgressAtMs: state.nowMs,
  };
  return {
    ...state,
    groups: [...state.groups, group],
    waitingGroupCount: state.waitingGroupCount - 1,
  };
}

function noteCall(state: ScheduleState, groupId: string, version: number): ScheduleState {
  const group = state.groups.find((g) => g.groupId === groupId);
  const known = group?.earliestVersion ?? Number.POSITIVE_INFINITY;
  if (group === undefined || known <= version) return state;
  return replaceGroup(state, { ...group, earliestVersion: version });
}

function noteRolloutEnd(state: ScheduleState, groupId: string): ScheduleState {
  const group = state.groups.find((g) => g.groupId === groupId);
  if (group === undefined) return state;
  return replaceGroup(state, {
    ...group,
    unfinishedRolloutCount: group.unfinishedRolloutCount - 1,
    lastProgressAtMs: state.nowMs,
  });
}

function replaceGroup(state: ScheduleState, group: ScheduleGroup): ScheduleState {
  const groups = state.groups.map((g) => (g.groupId === group.groupId ? group : g));
  return { ...state, groups };
}
