import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import SqliteDatabase from "better-sqlite3";
import { afterAll, describe, expect, it } from "vitest";
import { loadExperiment } from "../../controller/experiment/load-experiment.ts";
import { buildStepBatch } from "../../controller/scheduler/build-step-batch.ts";
import { trainingSettingsOf } from "../../controller/scheduler/experiment-settings.ts";
import type { StepMetrics } from "../../controller/scheduler/step-metrics.ts";
import { openRunStores } from "../../controller/store/open-run-stores.ts";
import { isTerminal } from "../../core/rollouts/rollout-state.ts";
import { killProcess, RunSessions } from "./run-sessions.ts";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const killCount = 24;
const seed = 20_261_130;
const victims = ["controller", "sidecar", "backend", "harness"] as const;
type Victim = (typeof victims)[number];

/** Uniform in [0, 1): the same kills in the same order each time. */
function randomSource(start: number): () => number {
  let state = start >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 4_294_967_296;
  };
}

class RunUnderFire extends RunSessions {
  /** Kills one process of the run with SIGKILL; false when there is none of that kind now. */
  async kill(victim: Victim, pick: number, steps: number): Promise<boolean> {
    if (victim === "controller") {
      if (!this.isAlive) throw new Error(`the run ended by itself:\n${await this.lastOutput()}`);
      await this.killController();
      this.start(steps);
      return true;
    }
    const pids = victim === "harness" ? this.harnessPids() : [this.pidOf(victim)];
    return killProcess(pids[Math.floor(pick * pids.length)]);
  }

  /** Request ids that are durable now: what a sidecar has had acknowledged is among them. */
  storedRequests(): readonly string[] {
    const path = join(this.directory, "run.db");
    if (!existsSync(path)) return [];
    const db = new SqliteDatabase(path, { readonly: true });
    try {
      return db.prepare("select request_id from request").pluck().all() as string[];
    } catch {
      // The tables are not made yet.
      return [];
    } finally {
      db.close();
    }
  }

  publishedSteps(): number {
    const path = join(this.directory, "run.db");
    if (!existsSync(path)) return 0;
    const db = new SqliteDatabase(path, { readonly: true });
    try {
      return db
        .prepare("select count(*) from step where state = 'published'")
        .pluck()
        .get() as number;
    } catch {
      return 0;
    } finally {
      db.close();
    }
  }
}

const root = mkdtempSync(join(tmpdir(), "outrigger-kill-"));
let run: RunUnderFire | undefined;
afterAll(async () => {
  await run?.destroy();
  rmSync(root, { recursive: true, force: true });
});

describe("invariant 5: any one process can be killed at any point", () => {
  it(`${killCount} random kills of controller, sidecar, backend and harness, then the run goes on`, async () => {
    const file = await writeTinyExperiment(root, {
      // Small steps: one is done between two kills more often than not.
      harness: { timeoutMs: 120_000, concurrency: 2 },
      schedule: { groupsPerStep: 1, groupSize: 2 },
      failurePolicy: { "infra-error": { maxRequeues: 50 } },
      // A call that comes before a restarted sidecar has checked its engine is not trained; in steps
      // as small as these one such call is above the usual limits.
      limits: { maxIncompleteFraction: 1, capture: { maxZeroCapture: 1 } },
      evaluation: { before: false, after: false },
    });
    const fire = new RunUnderFire(file, join(root, "run"));
    run = fire;
    const random = randomSource(seed);
    const unbounded = 10_000;
    const stored = new Set<string>();
    const killed: Victim[] = [];
    fire.start(unbounded);
    let seenRecords = 0;
    while (killed.length < killCount) {
      // One kill in four comes whatever state the run is in, the others when it works again.
      const isImpatient = killed.length > 0 && random() < 0.25;
      do {
        // The moment is what is tested: the wait is the fault injector's, not the test's.
        await new Promise((done) => setTimeout(done, 50 + random() * 1_200));
        for (const id of fire.storedRequests()) stored.add(id);
      } while (!isImpatient && stored.size === seenRecords && fire.isAlive);
      seenRecords = stored.size;
      const victim = victims[Math.floor(random() * victims.length)] as Victim;
      if (await fire.kill(victim, random(), unbounded)) killed.push(victim);
    }
    expect(new Set(killed)).toEqual(new Set(victims));
    await fire.kill("controller", 0, fire.publishedSteps() + 3);
    const before = fire.publishedSteps();
    expect(await fire.ended(), fire.output).toBe(0);
    expect(fire.publishedSteps(), "training went on").toBeGreaterThan(before);
    await checkRun(fire.directory, file, stored);
    // Two minutes on two idle cores; a machine that does other work as well may take its time.
  }, 900_000);
});

async function checkRun(
  directory: string,
  file: string,
  stored: ReadonlySet<string>,
): Promise<void> {
  const stores = await openRunStores(directory);
  try {
    const rollouts = await stores.rollouts.list({});
    expect(rollouts.filter((r) => !isTerminal(r.state)).map((r) => r.rolloutId)).toEqual([]);
    expect(new Set(rollouts.map((r) => r.terminalSeq)).size, "one terminal state each").toBe(
      rollouts.length,
    );
    for (const { rolloutId, rollout } of rollouts) {
      const attempts = await stores.rollouts.attempts(rolloutId);
      expect(attempts.every((attempt) => attempt.endReason !== undefined)).toBe(true);
      expect(attempts.map((a) => a.attemptId)).toEqual(rollout.attempts.map((a) => a.attemptId));
    }
    const steps = await stores.steps.steps<StepMetrics>();
    expect(steps.every((step) => step.state === "published")).toBe(true);
    const groupIds = steps.flatMap((step) => step.groupIds);
    expect(new Set(groupIds).size, "no group is trained twice").toBe(groupIds.length);
    let version = 0;
    for (const step of steps) {
      expect(step.fromVersion).toBe(version);
      version = step.metrics?.version as number;
      expect(version - step.fromVersion).toBe(step.metrics?.applied === true ? 1 : 0);
    }
    await checkCalls(stores, file, steps, stored);
  } finally {
    await stores.close();
  }
}

async function checkCalls(
  stores: Awaited<ReturnType<typeof openRunStores>>,
  file: string,
  steps: readonly { readonly groupIds: readonly string[]; readonly metrics?: StepMetrics }[],
  stored: ReadonlySet<string>,
): Promise<void> {
  const present = new Set<string>();
  const callIds: string[] = [];
  for (const { rolloutId } of await stores.rollouts.list({})) {
    for (const { attemptId } of await stores.rollouts.attempts(rolloutId)) {
      for (const { record, calls } of await stores.calls.requestsOfAttempt(rolloutId, attemptId)) {
        // Also one that a killed harness left before the engine said anything: it has no call.
        present.add(record.requestId);
        callIds.push(...calls.map((call) => call.callId));
      }
    }
  }
  expect(
    [...stored].filter((id) => !present.has(id)),
    "a durable record was lost",
  ).toEqual([]);
  expect(new Set(callIds).size, "a record was doubled").toBe(callIds.length);
  const training = trainingSettingsOf(loadExperiment(file));
  const trained: string[] = [];
  for (const step of steps) {
    const batch = await buildStepBatch(stores, step.groupIds, { training, assembly: {} });
    expect(batch.step.trainedTokens).toBe(step.metrics?.trainedTokens);
    trained.push(...batch.step.samples.flatMap((sample) => sample.callIds));
  }
  expect(trained.length).toBeGreaterThan(0);
  expect(new Set(trained).size, "a call is trained twice").toBe(trained.length);
}
