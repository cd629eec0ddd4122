import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkScheduleLog, type ScheduleLogLimits } from "./check-schedule-log.ts";
import type { ScheduleSettings } from "./decide-schedule.ts";
import { generateWorkload } from "./generate-workload.ts";
import type { ScheduleEvent } from "./schedule-event.ts";
import { buildScheduleReport } from "./schedule-report.ts";
import { type SimulatedFault, simulateSchedule } from "./simulate-schedule.ts";
import type { Workload } from "./workload.ts";

function limitsOf(workload: Workload, settings: ScheduleSettings): ScheduleLogLimits {
  const rollouts = new Map(
    workload.groups.flatMap((group) =>
      group.rollouts.map((r) => [r.rolloutId, { group, turnCount: r.turns.length }] as const),
    ),
  );
  const groups = new Map(workload.groups.map((group) => [group.groupId, group]));
  return {
    maxStaleness: settings.kind === "sync" ? 0 : settings.maxStaleness,
    isDeviceShared: settings.kind !== "async",
    slotCount: workload.engine.slots,
    groupIdOf: (rolloutId) => rollouts.get(rolloutId)?.group.groupId ?? "",
    turnCountOf: (rolloutId) =>
      settings.tail.kind === "cut" ? undefined : rollouts.get(rolloutId)?.turnCount,
    rolloutIdsOf: (groupId) => groups.get(groupId)?.rollouts.map((r) => r.rolloutId) ?? [],
  };
}

/** Violations; also when it did not finish: with `wait` all is trained, with `drop` none is lost. */
function findProblems(
  workload: Workload,
  settings: ScheduleSettings,
  log: readonly ScheduleEvent[],
): readonly string[] {
  const problems = [...checkScheduleLog(log, limitsOf(workload, settings))];
  const { groups, stepCount } = buildScheduleReport(workload, log, settings);
  const needed = workload.steps * workload.batch.groupsPerStep;
  const isAllTrained = groups.trained === needed && stepCount === workload.steps;
  const isUsedUp =
    settings.onStale === "drop" && groups.trained + groups.dropped === workload.groups.length;
  if (!isAllTrained && !isUsedUp) {
    problems.push(`ended with ${JSON.stringify(groups)} after ${stepCount} steps`);
  }
  return problems;
}

const kind = fc.constantFrom("sync" as const, "collocated-async" as const, "async" as const);
const settings = (groupsPerStep: number): fc.Arbitrary<ScheduleSettings> =>
  fc.record({
    kind,
    groupsPerStep: fc.constant(groupsPerStep),
    maxStaleness: fc.nat(4),
    onStale: fc.constantFrom("wait" as const, "drop" as const),
    tail: fc.oneof(
      { weight: 3, arbitrary: fc.constant({ kind: "wait" as const }) },
      {
        weight: 1,
        arbitrary: fc.record({
          kind: fc.constant("cut" as const),
          minFinishedShare: fc.constantFrom(0, 0.5),
          graceMs: fc.nat(60),
        }),
      },
    ),
    targetRolloutCount: fc.integer({ min: 1, max: 20 }),
  });

const smallWorkload = fc
  .record({
    slots: fc.integer({ min: 1, max: 6 }),
    stepMs: fc.nat(40),
    publishMs: fc.nat(10),
    groupsPerStep: fc.integer({ min: 1, max: 3 }),
    groupSize: fc.integer({ min: 1, max: 2 }),
    steps: fc.integer({ min: 1, max: 5 }),
    spareGroupCount: fc.nat(3),
    seed: fc.nat(),
    capMs: fc.constantFrom(20, 60, 200),
  })
  .map((shape) =>
    generateWorkload({
      ...shape,
      name: "small",
      duration: { kind: "pareto", medianMs: 12, alpha: 0.8 },
      turnMs: 15,
      toolShare: 0.3,
    }),
  );

const fault: fc.Arbitrary<SimulatedFault> = fc.record({
  atMs: fc.nat(400),
  process: fc.constantFrom("controller", "trainer", "engine", "harness"),
});

describe("simulateSchedule", () => {
  it("keeps the staleness bound, and every group, in 10,000 random schedules with kills", () => {
    const scenario = smallWorkload.chain((workload) =>
      fc.record({
        workload: fc.constant(workload),
        settings: settings(workload.batch.groupsPerStep),
        callOrder: fc.constantFrom("fifo" as const, "oldest-first" as const),
        faults: fc.array(fault, { maxLength: 3 }),
      }),
    );
    fc.assert(
      fc.property(scenario, ({ workload, settings: chosen, callOrder, faults }) => {
        const log = simulateSchedule(workload, { settings: chosen, callOrder, faults });
        const problems = findProblems(workload, chosen, log);
        if (problems.length > 0) expect(problems).toEqual([]);
      }),
      { numRuns: 10_000 },
    );
  }, 240_000);

  const recipe = {
    name: "issue-shaped",
    seed: 1,
    slots: 32,
    steps: 30,
    spareGroupCount: 0,
    groupsPerStep: 8,
    groupSize: 8,
    capMs: 300_000,
    turnMs: 3_000,
    toolShare: 0.2,
    stepMs: 20_000,
    publishMs: 1_000,
  } as const;

  it.each([
    { kind: "lognormal", medianMs: 30_000, sigma: 1.2 },
    { kind: "pareto", medianMs: 30_000, alpha: 1.3 },
  ] as const)("beats sync by far on $kind rollouts, within the bound", (duration) => {
    const workload = generateWorkload({ ...recipe, duration });
    const run = (kindOf: ScheduleSettings["kind"], maxStaleness: number) => {
      const chosen: ScheduleSettings = {
        kind: kindOf,
        groupsPerStep: 8,
        maxStaleness,
        onStale: "wait",
        tail: { kind: "wait" },
        targetRolloutCount: 40,
      };
      const log = simulateSchedule(workload, { settings: chosen, callOrder: "fifo" });
      const problems = findProblems(workload, chosen, log);
      if (problems.length > 0) expect(problems).toEqual([]);
      return buildScheduleReport(workload, log, chosen);
    };
    const sync = run("sync", 0);
    const gain = (report: { durationMs: number }) => sync.durationMs / report.durationMs;
    const bound2 = run("collocated-async", 2);
    const bound4 = run("collocated-async", 4);
    expect(gain(bound2)).toBeGreaterThan(2.3);
    expect(gain(bound2)).toBeLessThan(3);
    expect(gain(bound4)).toBeGreaterThan(2.7);
    expect(bound4.bounds.shareOfDeviceBusyBound).toBeGreaterThan(0.9);
    expect(gain(run("async", 4))).toBeGreaterThan(3.3);
  });
});

describe("kill and restart", () => {
  const workload = generateWorkload({
    name: "kill",
    seed: 7,
    slots: 4,
    steps: 3,
    spareGroupCount: 4,
    groupsPerStep: 2,
    groupSize: 2,
    duration: { kind: "pareto", medianMs: 20, alpha: 0.9 },
    capMs: 120,
    turnMs: 20,
    toolShare: 0.3,
    stepMs: 30,
    publishMs: 5,
  });
  const processes = ["controller", "trainer", "engine", "harness"] as const;

  it.each([
    ["sync", "wait"],
    ["collocated-async", "wait"],
    ["collocated-async", "drop"],
    ["async", "wait"],
    ["async", "drop"],
  ] as const)("at every moment of %s with %s loses and doubles nothing", (kindOf, onStale) => {
    const chosen: ScheduleSettings = {
      kind: kindOf,
      groupsPerStep: 2,
      maxStaleness: 1,
      onStale,
      tail: { kind: "wait" },
      targetRolloutCount: 6,
    };
    const options = { settings: chosen, callOrder: "fifo" as const };
    const calm = simulateSchedule(workload, options);
    const phases = new Set(calm.map((event) => event.type));
    for (const phase of ["admit", "call-start", "pause", "train-start", "train-end", "publish"]) {
      expect(phases).toContain(phase);
    }
    // Every event's time and the middle of every interval: gate open, draining, stepping,
    // publishing are all among them.
    const times = [...new Set(calm.map((event) => event.t))];
    const middles = times.map((t, index) => (t + (times[index + 1] ?? t)) / 2);
    for (const atMs of [...times, ...middles]) {
      for (const process of processes) {
        const log = simulateSchedule(workload, { ...options, faults: [{ atMs, process }] });
        const problems = findProblems(workload, chosen, log);
        if (problems.length > 0) expect(problems).toEqual([]);
        // What only the controller knew is in the log: without its memory it decides the same.
        if (process === "controller") expect(log).toEqual(calm);
      }
    }
  });
});
