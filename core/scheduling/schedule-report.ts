import { type ScheduleSettings, stalenessRuleOf } from "./decide-schedule.ts";
import type { ScheduleEvent } from "./schedule-event.ts";
import type { Workload, WorkloadGroup } from "./workload.ts";

/** Times in ms, rates per hour of virtual time, shares and fractions 0 to 1. */
export interface ScheduleReport {
  readonly workload: string;
  readonly schedule: ScheduleSettings["kind"];
  readonly stalenessBound: number;
  readonly onStale: ScheduleSettings["onStale"];
  readonly stepCount: number;
  readonly durationMs: number;
  readonly throughput: {
    readonly stepsPerHour: number;
    readonly groupsPerHour: number;
    readonly rolloutsPerHour: number;
  };
  readonly device: {
    /** Slots in use, averaged over time. */
    readonly engineBusyFraction: number;
    /** Stepping or publishing. */
    readonly trainerBusyFraction: number;
    /** Of the shared device: the sum. Of two devices: the busier one. */
    readonly busyFraction: number;
  };
  /** Per trained group: the update's version minus the group's lowest. */
  readonly staleness: {
    readonly histogram: Readonly<Record<string, number>>;
    readonly mean: number;
    readonly max: number;
  };
  /** Model time per rollout of what was trained, over that of all that was admitted. */
  readonly lengthBias: {
    readonly trainedMeanCallMs: number;
    readonly admittedMeanCallMs: number;
    readonly ratio: number;
  };
  readonly groups: {
    readonly admitted: number;
    readonly trained: number;
    readonly dropped: number;
    readonly unfinished: number;
  };
  readonly calls: { readonly finished: number; readonly aborted: number };
  readonly cutRolloutCount: number;
  readonly bounds: {
    /** The trained work with the (busier) device never idle. */
    readonly deviceBusyDurationMs: number;
    /** durationMs of that bound over durationMs: 1 = the bound is reached. */
    readonly shareOfDeviceBusyBound: number;
    /** With `wait` the gain over sync cannot exceed about k + 1. */
    readonly stalenessGain: number;
  };
}

/** Everything that is reported about one run of a schedule, from its log. */
export function buildScheduleReport(
  workload: Workload,
  events: readonly ScheduleEvent[],
  settings: ScheduleSettings,
): ScheduleReport {
  const tally = tallyEvents(workload, events);
  const durationMs = events.at(-1)?.t ?? 0;
  const { slots } = workload.engine;
  const perHour = (count: number) => (durationMs > 0 ? (count * 3_600_000) / durationMs : 0);
  const fraction = (busyMs: number) => (durationMs > 0 ? busyMs / durationMs : 0);
  const engineBusyFraction = fraction(tally.callMs / slots);
  const trainerBusyFraction = fraction(tally.trainerMs);
  const isShared = settings.kind !== "async";
  const { trained, admitted, dropped } = tally;
  const trainedMeanCallMs = meanCallMs(trained, tally.finishedTurns);
  const admittedMeanCallMs = meanCallMs(admitted);
  const deviceBusyDurationMs = deviceBusyDuration(workload, tally, isShared);
  const rolloutCount = trained.reduce((sum, group) => sum + group.rollouts.length, 0);
  return {
    workload: workload.name,
    schedule: settings.kind,
    stalenessBound: stalenessRuleOf(settings).maxStaleness,
    onStale: settings.onStale,
    stepCount: tally.stepCount,
    durationMs,
    throughput: {
      stepsPerHour: perHour(tally.stepCount),
      groupsPerHour: perHour(trained.length),
      rolloutsPerHour: perHour(rolloutCount),
    },
    device: {
      engineBusyFraction,
      trainerBusyFraction,
      busyFraction: isShared
        ? engineBusyFraction + trainerBusyFraction
        : Math.max(engineBusyFraction, trainerBusyFraction),
    },
    staleness: summariseStaleness(tally.stalenesses),
    lengthBias: {
      trainedMeanCallMs,
      admittedMeanCallMs,
      ratio: admittedMeanCallMs > 0 ? trainedMeanCallMs / admittedMeanCallMs : 1,
    },
    groups: {
      admitted: admitted.length,
      trained: trained.length,
      dropped,
      unfinished: admitted.length - trained.length - dropped,
    },
    calls: { finished: tally.finishedCallCount, aborted: tally.abortedCallCount },
    cutRolloutCount: countCut(trained, tally.finishedTurns),
    bounds: {
      deviceBusyDurationMs,
      shareOfDeviceBusyBound: fraction(deviceBusyDurationMs),
      stalenessGain: stalenessRuleOf(settings).maxStaleness + 1,
    },
  };
}

interface Tally {
  callMs: number;
  trainerMs: number;
  stepCount: number;
  dropped: number;
  finishedCallCount: number;
  abortedCallCount: number;
  readonly stalenesses: number[];
  readonly admitted: WorkloadGroup[];
  /** Groups of updates that were published. */
  readonly trained: WorkloadGroup[];
  /** Turns whose call ended, by rollout. */
  readonly finishedTurns: Map<string, number>;
}

function tallyEvents(workload: Workload, events: readonly ScheduleEvent[]): Tally {
  const groupById = new Map(workload.groups.map((group) => [group.groupId, group]));
  const groupIdOf = new Map(
    workload.groups.flatMap((g) => g.rollouts.map((r) => [r.rolloutId, g.groupId] as const)),
  );
  const tally: Tally = {
    callMs: 0,
    trainerMs: 0,
    stepCount: 0,
    dropped: 0,
    finishedCallCount: 0,
    abortedCallCount: 0,
    stalenesses: [],
    admitted: [],
    trained: [],
    finishedTurns: new Map(),
  };
  const startedAt = new Map<string, number>();
  const lowestVersion = new Map<string, number>();
  let trainer = { version: 0, groups: [] as readonly string[] };
  let busySince = 0;

  const endCall = (rolloutId: string, t: number) => {
    tally.callMs += t - (startedAt.get(rolloutId) ?? t);
  };
  const endUpdate = () => {
    tally.stepCount += 1;
    for (const groupId of trainer.groups) {
      const group = groupById.get(groupId);
      if (group === undefined) continue;
      tally.trained.push(group);
      tally.stalenesses.push(trainer.version - (lowestVersion.get(groupId) ?? trainer.version));
    }
  };

  for (const event of events) {
    switch (event.type) {
      case "admit": {
        const group = groupById.get(event.groupId);
        if (group !== undefined) tally.admitted.push(group);
        break;
      }
      case "call-start": {
        startedAt.set(event.rolloutId, event.t);
        const groupId = groupIdOf.get(event.rolloutId) ?? "";
        const lowest = lowestVersion.get(groupId) ?? event.version;
        lowestVersion.set(groupId, Math.min(lowest, event.version));
        break;
      }
      case "call-end":
        endCall(event.rolloutId, event.t);
        tally.finishedCallCount += 1;
        tally.finishedTurns.set(event.rolloutId, event.turn + 1);
        break;
      case "call-abort":
        endCall(event.rolloutId, event.t);
        tally.abortedCallCount += 1;
        break;
      case "train-start":
        trainer = event;
        busySince = event.t;
        break;
      case "train-end":
        tally.trainerMs += event.t - busySince;
        busySince = event.t;
        break;
      case "publish":
        tally.trainerMs += event.t - busySince;
        endUpdate();
        break;
      case "drop":
        tally.dropped += 1;
        break;
      case "rollout-end":
      case "pause":
      case "drained":
      case "resume":
        break;
    }
  }
  return tally;
}

/** Mean model time per rollout, ms; of its first turns only where `turnCounts` says how many. */
function meanCallMs(
  groups: readonly WorkloadGroup[],
  turnCounts?: ReadonlyMap<string, number>,
): number {
  const rollouts = groups.flatMap((group) => group.rollouts);
  const totalMs = rollouts.reduce((sum, { rolloutId, turns }) => {
    const done = turnCounts === undefined ? turns : turns.slice(0, turnCounts.get(rolloutId) ?? 0);
    return sum + done.reduce((ms, turn) => ms + turn.callMs, 0);
  }, 0);
  return rollouts.length > 0 ? totalMs / rollouts.length : 0;
}

function countCut(
  groups: readonly WorkloadGroup[],
  turnCounts: ReadonlyMap<string, number>,
): number {
  return groups
    .flatMap((group) => group.rollouts)
    .filter(({ rolloutId, turns }) => (turnCounts.get(rolloutId) ?? 0) < turns.length).length;
}

function deviceBusyDuration(workload: Workload, tally: Tally, isShared: boolean): number {
  const { stepMs, publishMs } = workload.trainer;
  const rolloutCount = tally.trained.reduce((sum, group) => sum + group.rollouts.length, 0);
  const callMs = meanCallMs(tally.trained, tally.finishedTurns) * rolloutCount;
  const engineMs = callMs / workload.engine.slots;
  const trainerMs = tally.stepCount * (stepMs + publishMs);
  return isShared
    ? engineMs + trainerMs
    : Math.max(engineMs + tally.stepCount * publishMs, trainerMs);
}

function summariseStaleness(stalenesses: readonly number[]): ScheduleReport["staleness"] {
  const histogram: Record<string, number> = {};
  for (const staleness of stalenesses.toSorted((a, b) => a - b)) {
    histogram[staleness] = (histogram[staleness] ?? 0) + 1;
  }
  const sum = stalenesses.reduce((total, staleness) => total + staleness, 0);
  const mean = stalenesses.length > 0 ? sum / stalenesses.length : 0;
  return { histogram, mean, max: Math.max(0, ...stalenesses) };
}
