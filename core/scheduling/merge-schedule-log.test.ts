import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkScheduleLog } from "./check-schedule-log.ts";
import type { ScheduleSettings } from "./decide-schedule.ts";
import { generateWorkload } from "./generate-workload.ts";
import { type DurableSchedule, mergeScheduleLog, type RecordedCall } from "./merge-schedule-log.ts";
import { encodeScheduleEvent, parseScheduleLog, type ScheduleEvent } from "./schedule-event.ts";
import { simulateSchedule, workloadRegistry } from "./simulate-schedule.ts";

const nothing: DurableSchedule = {
  admitted: [],
  droppedGroupIds: [],
  ended: [],
  steps: [],
  calls: [],
};
const call = (over: Partial<RecordedCall>): RecordedCall => ({
  rolloutId: "a-0",
  attemptId: "a-0.1",
  startedAt: 10,
  endedAt: 20,
  version: 0,
  isAborted: false,
  ...over,
});

describe("mergeScheduleLog", () => {
  it("numbers the calls of an attempt, an aborted one and its repetition alike", () => {
    const calls = [
      call({ startedAt: 50.9, endedAt: 61, version: 1 }),
      call({}),
      call({ startedAt: 30, endedAt: 31, isAborted: true }),
      call({ attemptId: "a-0.2", startedAt: 70, endedAt: 70.4 }),
    ];
    expect(mergeScheduleLog([], { ...nothing, calls })).toEqual([
      { t: 10, type: "call-start", rolloutId: "a-0", turn: 0, version: 0 },
      { t: 20, type: "call-end", rolloutId: "a-0", turn: 0 },
      { t: 30, type: "call-start", rolloutId: "a-0", turn: 1, version: 0 },
      { t: 31, type: "call-abort", rolloutId: "a-0", turn: 1 },
      { t: 50, type: "call-start", rolloutId: "a-0", turn: 1, version: 1 },
      { t: 61, type: "call-end", rolloutId: "a-0", turn: 1 },
      { t: 70, type: "call-start", rolloutId: "a-0", turn: 0, version: 0 },
      { t: 70, type: "call-end", rolloutId: "a-0", turn: 0 },
    ]);
  });

  it("puts in what a kill kept from the log", () => {
    const durable: DurableSchedule = {
      ...nothing,
      admitted: [{ groupId: "a", at: 1 }],
      ended: [{ rolloutId: "a-0", at: 25 }],
      steps: [
        { fromVersion: 0, groupIds: ["a"], startedAt: 30, published: { version: 1, at: 40 } },
      ],
    };
    const whole: ScheduleEvent[] = [
      { t: 1, type: "admit", groupId: "a" },
      { t: 25, type: "rollout-end", rolloutId: "a-0" },
      { t: 27, type: "pause" },
      { t: 30, type: "train-start", version: 0, groups: ["a"] },
      { t: 35, type: "train-end" },
      { t: 40, type: "publish", version: 1 },
    ];
    for (const type of ["admit", "rollout-end", "train-start", "publish"]) {
      const cut = whole.filter((event) => event.type !== type);
      expect(mergeScheduleLog(cut, durable), type).toEqual(whole);
    }
    expect(mergeScheduleLog(whole, durable)).toEqual(whole);
  });

  it("gives back the log of a simulation from its parts, sound and in order, as often as asked", () => {
    fc.assert(
      fc.property(scenario, ({ workload, settings, lost }) => {
        const log = simulateSchedule(workload, { settings, callOrder: "fifo" });
        const decisions = log.filter((event) => !event.type.startsWith("call-"));
        const durable = durableOf(log);
        const left = decisions.filter((event, index) => !isLost(event, index, decisions, lost));
        const merged = mergeScheduleLog(left, durable);
        expect(tally(merged)).toEqual(tally(log));
        expect(parseScheduleLog(merged.map(encodeScheduleEvent).join("\n"))).toEqual(merged);
        expect(mergeScheduleLog(merged, durable)).toEqual(merged);
        const registry = workloadRegistry(workload);
        const violations = checkScheduleLog(merged, {
          maxStaleness: settings.kind === "sync" ? 0 : settings.maxStaleness,
          isDeviceShared: settings.kind !== "async",
          slotCount: workload.engine.slots,
          commandDelayMs: 1,
          groupIdOf: (rolloutId) => registry.groupIdOf(rolloutId),
          turnCountOf: () => undefined,
          rolloutIdsOf: (groupId) =>
            workload.groups
              .filter((group) => group.groupId === groupId)
              .flatMap(({ rollouts }) => rollouts.map(({ rolloutId }) => rolloutId)),
        });
        expect(violations).toEqual([]);
      }),
      { numRuns: 100 },
    );
  });
});

const scenario = fc.record({
  workload: fc.record({ seed: fc.nat(), steps: fc.integer({ min: 1, max: 4 }) }).map((shape) =>
    generateWorkload({
      ...shape,
      name: "small",
      slots: 3,
      groupsPerStep: 2,
      groupSize: 2,
      spareGroupCount: 0,
      stepMs: 20,
      publishMs: 5,
      duration: { kind: "lognormal", medianMs: 40, sigma: 1 },
      capMs: 300,
      turnMs: 15,
      toolShare: 0.3,
    }),
  ),
  settings: fc.record({
    kind: fc.constantFrom("sync" as const, "collocated-async" as const, "async" as const),
    groupsPerStep: fc.constant(2),
    maxStaleness: fc.nat(3),
    onStale: fc.constant("wait" as const),
    tail: fc.constant({ kind: "wait" as const }),
    targetRolloutCount: fc.constant(6),
  }) satisfies fc.Arbitrary<ScheduleSettings>,
  lost: fc.nat(10_000),
});

/** One admission or end anywhere, or the last publication: what a kill can keep back. */
function isLost(
  event: ScheduleEvent,
  index: number,
  decisions: readonly ScheduleEvent[],
  lost: number,
): boolean {
  if (index !== lost % decisions.length) return false;
  if (event.type === "publish")
    return !decisions.slice(index + 1).some((e) => e.type === "publish");
  return event.type === "admit" || event.type === "rollout-end";
}

/** How often each line is there. */
function tally(events: readonly ScheduleEvent[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const event of events) {
    const line = encodeScheduleEvent({ ...event, t: Math.floor(event.t) });
    counts[line] = (counts[line] ?? 0) + 1;
  }
  return counts;
}

function durableOf(log: readonly ScheduleEvent[]): DurableSchedule {
  const calls: RecordedCall[] = [];
  const open = new Map<string, ScheduleEvent & { readonly type: "call-start" }>();
  const steps: { fromVersion: number; groupIds: string[]; startedAt: number }[] = [];
  const published: { version: number; at: number }[] = [];
  for (const event of log) {
    if (event.type === "call-start") open.set(event.rolloutId, event);
    if (event.type === "call-end" || event.type === "call-abort") {
      const start = open.get(event.rolloutId);
      if (start === undefined) continue;
      calls.push({
        rolloutId: event.rolloutId,
        attemptId: event.rolloutId,
        startedAt: start.t,
        endedAt: event.t,
        version: start.version,
        isAborted: event.type === "call-abort",
      });
      open.delete(event.rolloutId);
    }
    if (event.type === "train-start") {
      steps.push({ fromVersion: event.version, groupIds: event.groups, startedAt: event.t });
    }
    if (event.type === "publish") published.push({ version: event.version, at: event.t });
  }
  return {
    admitted: log.flatMap((e) => (e.type === "admit" ? [{ groupId: e.groupId, at: e.t }] : [])),
    droppedGroupIds: [],
    ended: log.flatMap((e) =>
      e.type === "rollout-end" ? [{ rolloutId: e.rolloutId, at: e.t }] : [],
    ),
    steps: steps.map((step, index) => ({
      ...step,
      ...(published[index] !== undefined && { published: published[index] }),
    })),
    calls,
  };
}
