import type { ScheduleEvent } from "./schedule-event.ts";

/** What a log says by itself, without the workload: of a recorded run, or of a simulated one. */
export interface ScheduleLogReport {
  readonly stepCount: number;
  /** From the first admission to the last publication, ms. */
  readonly durationMs: number;
  readonly groups: {
    readonly admitted: number;
    readonly trained: number;
    readonly dropped: number;
    readonly unfinished: number;
  };
  /** Of rollouts in trained groups. */
  readonly rolloutsPerHour: number;
  /** From an update's start to its publication, of the duration. */
  readonly trainerBusyFraction: number;
  /** Of the duration. */
  readonly gateShutFraction: number;
  /**
   * Per trained group: the update's version minus the lowest that a call of it started at; where
   * the log has no calls, minus the version at admission, which is never higher.
   */
  readonly staleness: {
    readonly histogram: Readonly<Record<string, number>>;
    readonly mean: number;
    readonly max: number;
  };
}

interface GroupFacts {
  readonly admittedVersion: number;
  lowestVersion: number | undefined;
  rolloutCount: number;
  state: "active" | "trained" | "dropped";
}

/** @param groupIdOf the group of a rollout id, as the log's writer named them */
export function buildScheduleLogReport(
  events: readonly ScheduleEvent[],
  groupIdOf: (rolloutId: string) => string,
): ScheduleLogReport {
  const groups = new Map<string, GroupFacts>();
  const stalenesses: number[] = [];
  let version = 0;
  let stepCount = 0;
  for (const event of events) {
    switch (event.type) {
      case "admit":
        groups.set(event.groupId, newGroup(version));
        break;
      case "call-start": {
        const group = groups.get(groupIdOf(event.rolloutId));
        if (group !== undefined) {
          group.lowestVersion = Math.min(group.lowestVersion ?? event.version, event.version);
        }
        break;
      }
      case "rollout-end": {
        const group = groups.get(groupIdOf(event.rolloutId));
        if (group !== undefined) group.rolloutCount += 1;
        break;
      }
      case "train-start":
        for (const groupId of event.groups) {
          const group = groups.get(groupId);
          // A restart starts an interrupted update again.
          if (group === undefined || group.state !== "active") continue;
          group.state = "trained";
          stalenesses.push(event.version - (group.lowestVersion ?? group.admittedVersion));
        }
        break;
      case "publish":
        version = event.version;
        stepCount += 1;
        break;
      case "drop": {
        const group = groups.get(event.groupId);
        if (group !== undefined) group.state = "dropped";
        break;
      }
      case "call-end":
      case "call-abort":
      case "pause":
      case "drained":
      case "resume":
      case "train-end":
        break;
    }
  }
  return { stepCount, ...ratesOf(events, groups), staleness: summarise(stalenesses) };
}

function newGroup(admittedVersion: number): GroupFacts {
  return { admittedVersion, lowestVersion: undefined, rolloutCount: 0, state: "active" };
}

function ratesOf(
  events: readonly ScheduleEvent[],
  groups: ReadonlyMap<string, GroupFacts>,
): Omit<ScheduleLogReport, "stepCount" | "staleness"> {
  const startMs = events.find((event) => event.type === "admit")?.t ?? 0;
  const endMs = events.findLast((event) => event.type === "publish")?.t ?? startMs;
  const durationMs = Math.max(0, endMs - startMs);
  const facts = [...groups.values()];
  const count = (state: GroupFacts["state"]): number =>
    facts.filter((group) => group.state === state).length;
  const trainedRollouts = facts
    .filter((group) => group.state === "trained")
    .reduce((sum, group) => sum + group.rolloutCount, 0);
  const share = (ms: number): number => (durationMs > 0 ? ms / durationMs : 0);
  return {
    durationMs,
    groups: {
      admitted: facts.length,
      trained: count("trained"),
      dropped: count("dropped"),
      unfinished: count("active"),
    },
    rolloutsPerHour: durationMs > 0 ? (trainedRollouts * 3_600_000) / durationMs : 0,
    trainerBusyFraction: share(timeBetween(events, "train-start", "publish", endMs)),
    gateShutFraction: share(timeBetween(events, "pause", "resume", endMs)),
  };
}

/** Time from each `from` to the next `to`, up to `endMs`. */
function timeBetween(
  events: readonly ScheduleEvent[],
  from: ScheduleEvent["type"],
  to: ScheduleEvent["type"],
  endMs: number,
): number {
  let sinceMs: number | undefined;
  let totalMs = 0;
  for (const { type, t } of events) {
    if (t > endMs) break;
    if (type === from) sinceMs ??= t;
    else if (type === to && sinceMs !== undefined) {
      totalMs += t - sinceMs;
      sinceMs = undefined;
    }
  }
  return sinceMs === undefined ? totalMs : totalMs + Math.max(0, endMs - sinceMs);
}

function summarise(stalenesses: readonly number[]): ScheduleLogReport["staleness"] {
  const histogram: Record<string, number> = {};
  for (const one of stalenesses.toSorted((a, b) => a - b)) {
    histogram[one] = (histogram[one] ?? 0) + 1;
  }
  const sum = stalenesses.reduce((total, one) => total + one, 0);
  return {
    histogram,
    mean: stalenesses.length > 0 ? sum / stalenesses.length : 0,
    max: Math.max(0, ...stalenesses),
  };
}
