import { describe, expect, it } from "vitest";
import type { ScheduleEvent } from "./schedule-event.ts";
import { buildScheduleLogReport } from "./schedule-log-report.ts";

const groupIdOf = (rolloutId: string): string => rolloutId.slice(0, rolloutId.lastIndexOf("-"));

/** Two groups of one rollout; b is admitted at version 0 and calls first at version 1. */
const log: readonly ScheduleEvent[] = [
  { t: 1000, type: "admit", groupId: "a" },
  { t: 1000, type: "admit", groupId: "b" },
  { t: 1100, type: "call-start", rolloutId: "a-0", turn: 0, version: 0 },
  { t: 1200, type: "call-end", rolloutId: "a-0", turn: 0 },
  { t: 1200, type: "rollout-end", rolloutId: "a-0" },
  { t: 1300, type: "pause" },
  { t: 1300, type: "drained" },
  { t: 1400, type: "train-start", version: 0, groups: ["a"] },
  { t: 1500, type: "train-start", version: 0, groups: ["a"] },
  { t: 1700, type: "train-end" },
  { t: 1800, type: "publish", version: 1 },
  { t: 1900, type: "resume" },
  { t: 2000, type: "call-start", rolloutId: "b-0", turn: 0, version: 1 },
  { t: 2100, type: "rollout-end", rolloutId: "b-0" },
  { t: 2200, type: "pause" },
  { t: 2600, type: "train-start", version: 1, groups: ["b"] },
  { t: 2900, type: "train-end" },
  { t: 3000, type: "publish", version: 2 },
  { t: 9000, type: "admit", groupId: "c" },
  { t: 9001, type: "drop", groupId: "c" },
];

describe("buildScheduleLogReport", () => {
  it("adds up what a log says", () => {
    expect(buildScheduleLogReport(log, groupIdOf)).toEqual({
      stepCount: 2,
      durationMs: 2000,
      groups: { admitted: 3, trained: 2, dropped: 1, unfinished: 0 },
      rolloutsPerHour: 3600,
      trainerBusyFraction: (400 + 400) / 2000,
      gateShutFraction: (600 + 800) / 2000,
      staleness: { histogram: { 0: 2 }, mean: 0, max: 0 },
    });
  });

  it("counts staleness from the admission where a log has no calls", () => {
    const withoutCalls = log.filter((event) => !event.type.startsWith("call-"));
    expect(buildScheduleLogReport(withoutCalls, groupIdOf).staleness).toEqual({
      histogram: { 0: 1, 1: 1 },
      mean: 0.5,
      max: 1,
    });
  });

  it("gives zeros for an empty log", () => {
    expect(buildScheduleLogReport([], groupIdOf)).toMatchObject({
      stepCount: 0,
      durationMs: 0,
      rolloutsPerHour: 0,
      trainerBusyFraction: 0,
    });
  });
});
