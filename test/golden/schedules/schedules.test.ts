import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { ScheduleSettings } from "../../../core/scheduling/decide-schedule.ts";
import { parseScheduleLog } from "../../../core/scheduling/schedule-event.ts";
import { buildScheduleReport } from "../../../core/scheduling/schedule-report.ts";
import { simulateSchedule } from "../../../core/scheduling/simulate-schedule.ts";
import { parseWorkload } from "../../../core/scheduling/workload.ts";

const read = (name: string) => readFileSync(new URL(name, import.meta.url), "utf8");
const workload = parseWorkload(JSON.parse(read("tiny-workload.json")));
const sync: ScheduleSettings = {
  kind: "sync",
  groupsPerStep: 1,
  maxStaleness: 0,
  onStale: "wait",
  tail: { kind: "wait" },
  targetRolloutCount: 2,
};
const collocated: ScheduleSettings = { ...sync, kind: "collocated-async", maxStaleness: 1 };

describe("golden schedules, worked out by hand", () => {
  it.each([
    ["tiny-sync.jsonl", sync],
    ["tiny-collocated.jsonl", collocated],
  ] as const)("%s", (name, settings) => {
    const expected = parseScheduleLog(read(name));
    expect(simulateSchedule(workload, { settings, callOrder: "fifo" })).toEqual(expected);
  });

  it("reports the collocated run: 40 ms of calls and 18 ms of training in 63 ms", () => {
    const log = parseScheduleLog(read("tiny-collocated.jsonl"));
    const report = buildScheduleReport(workload, log, collocated);
    expect(report.durationMs).toBe(63);
    expect(report.device.engineBusyFraction).toBeCloseTo(40 / 63, 12);
    expect(report.device.trainerBusyFraction).toBeCloseTo(18 / 63, 12);
    expect(report.device.busyFraction).toBeCloseTo(58 / 63, 12);
    expect(report.bounds).toEqual({
      deviceBusyDurationMs: 58,
      shareOfDeviceBusyBound: 58 / 63,
      stalenessGain: 2,
    });
    expect(report.staleness).toEqual({ histogram: { 0: 1, 1: 1 }, mean: 0.5, max: 1 });
    expect(report.throughput.stepsPerHour).toBeCloseTo((2 * 3_600_000) / 63, 6);
    expect(report.lengthBias).toEqual({
      trainedMeanCallMs: 20,
      admittedMeanCallMs: 20,
      ratio: 1,
    });
  });
});
