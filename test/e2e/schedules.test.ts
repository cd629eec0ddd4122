import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { loadExperiment } from "../../controller/experiment/load-experiment.ts";
import { buildStepBatch } from "../../controller/scheduler/build-step-batch.ts";
import { trainingSettingsOf } from "../../controller/scheduler/experiment-settings.ts";
import type { StepMetrics } from "../../controller/scheduler/step-metrics.ts";
import { openRunStores, type RunStores } from "../../controller/store/open-run-stores.ts";
import { checkScheduleLog } from "../../core/scheduling/check-schedule-log.ts";
import type { ScheduleEvent } from "../../core/scheduling/schedule-event.ts";
import {
  type ScheduleExperiment,
  ScheduleSession,
  type Victim,
  writeScheduleExperiment,
} from "./schedules-session.ts";

/** In each phase each process dies alone, one after the other. */
const victims: readonly Victim[] = ["backend", "sidecar", "controller"];
/** A phase begins with this line of the log. */
const phases: readonly ScheduleEvent["type"][] = [
  "rollout-end",
  "pause",
  "train-start",
  "train-end",
];
const unbounded = 10_000;
const groupSize = 2;
/** Of the harness in each rollout. */
const turnCount = 2;
/** A command to the gate may be on its way for so long on a machine with much else to do. */
const commandDelayMs = 2_000;

const root = mkdtempSync(join(tmpdir(), "outrigger-schedules-"));
const sessions: ScheduleSession[] = [];
afterAll(async () => {
  for (const session of sessions) await session.destroy();
  rmSync(root, { recursive: true, force: true });
});

describe("kill -9 in each phase of a schedule, then resume", () => {
  it.each<[ScheduleExperiment["kind"], number]>([
    ["sync", 0],
    ["collocated-async", 2],
    ["async", 2],
  ])(
    "%s loses no group, trains none twice and keeps the bound %i",
    async (kind, bound) => {
      const home = join(root, kind);
      mkdirSync(home);
      const file = await writeScheduleExperiment(home, {
        kind,
        maxStalenessSteps: bound,
        groupsPerStep: 1,
        groupSize,
        concurrency: 3,
        pauses: { medianMs: 40, sigma: 1, capMs: 600 },
      });
      const session = new ScheduleSession(file, join(home, "run"));
      sessions.push(session);
      session.start(unbounded);
      for (const phase of phases) {
        for (const victim of victims) {
          await session.next(phase, 240_000);
          await session.kill(victim);
          if (victim === "controller") session.start(unbounded);
        }
      }
      await session.next("publish", 240_000);
      await session.kill("controller");
      const published = session.events().filter((event) => event.type === "publish").length;
      session.start(published + bound + 2);
      expect(await session.ended(), session.output).toBe(0);
      await checkRun(session, file, { kind, bound });
    },
    1_200_000,
  );
});

/** From the store, which is the truth, and the log, which says what happened when. */
async function checkRun(
  session: ScheduleSession,
  file: string,
  { kind, bound }: { readonly kind: ScheduleExperiment["kind"]; readonly bound: number },
): Promise<void> {
  const stores = await openRunStores(session.directory);
  try {
    const steps = await stores.steps.steps<StepMetrics>();
    expect(steps.every((step) => step.state === "published")).toBe(true);
    const trained = steps.flatMap((step) => step.groupIds);
    const active = (await stores.steps.activeGroups()).map((group) => group.groupId);
    const admitted = Array.from({ length: await stores.steps.admittedCount() }, (_, i) => `g${i}`);
    expect([...trained, ...active].sort(), "each group once: trained or still active").toEqual(
      admitted.sort(),
    );
    let version = 0;
    const training = trainingSettingsOf(loadExperiment(file));
    const trainedCalls: string[] = [];
    const stalenesses: number[] = [];
    for (const step of steps) {
      expect(step.fromVersion).toBe(version);
      version = step.metrics?.version as number;
      const { samples } = (await buildStepBatch(stores, step.groupIds, { training, assembly: {} }))
        .step;
      trainedCalls.push(...samples.flatMap((sample) => sample.callIds));
      for (const { policyVersions } of samples) {
        const oldest = Math.min(...policyVersions.filter((one) => one >= 0));
        stalenesses.push(step.fromVersion - oldest);
      }
    }
    expect(new Set(trainedCalls).size, "no call is trained twice").toBe(trainedCalls.length);
    expect(trainedCalls.length).toBeGreaterThan(0);
    expect(Math.max(...stalenesses)).toBeLessThanOrEqual(bound);
    expect(Math.min(...stalenesses)).toBeGreaterThanOrEqual(0);
    await checkLog(session.events(), stores, { kind, bound, trained });
  } finally {
    await stores.close();
  }
}

/**
 * The recorded log is whole and sound by the same rules as a simulated one, kills or not, and what
 * it says was trained is what the store says, in the same order.
 */
async function checkLog(
  events: readonly ScheduleEvent[],
  stores: RunStores,
  facts: {
    readonly kind: ScheduleExperiment["kind"];
    readonly bound: number;
    readonly trained: readonly string[];
  },
): Promise<void> {
  const rollouts = await stores.rollouts.list({});
  const succeeded = new Set(
    rollouts.flatMap((r) => (r.endReason === "succeeded" ? [r.rolloutId] : [])),
  );
  const violations = checkScheduleLog(events, {
    maxStaleness: facts.bound,
    isDeviceShared: facts.kind !== "async",
    commandDelayMs,
    groupIdOf: (rolloutId) => rolloutId.slice(0, rolloutId.lastIndexOf("-")),
    turnCountOf: (rolloutId) => (succeeded.has(rolloutId) ? turnCount : undefined),
    rolloutIdsOf: (groupId) => Array.from({ length: groupSize }, (_, i) => `${groupId}-${i}`),
  });
  expect(violations).toEqual([]);
  const of = (...types: ScheduleEvent["type"][]): number =>
    events.filter((event) => types.includes(event.type)).length;
  expect(of("call-start"), "every call is in the log").toBe(
    (await stores.calls.sentRequests()).length,
  );
  expect(of("call-end", "call-abort")).toBe(of("call-start"));
  expect(of("call-end")).toBeGreaterThanOrEqual(turnCount * groupSize * facts.trained.length);
  const started: string[][] = [];
  for (const event of events) {
    // An update that a kill interrupted is started again with the same groups.
    if (event.type !== "train-start" || started.at(-1)?.join() === event.groups.join()) continue;
    started.push(event.groups);
  }
  expect(started.flat()).toEqual(facts.trained);
}
