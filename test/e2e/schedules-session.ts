import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseScheduleLog, type ScheduleEvent } from "../../core/scheduling/schedule-event.ts";
import { killProcess, RunSessions } from "./run-sessions.ts";
import { twoTurnHarness, writeTinyExperiment } from "./tiny-experiment.ts";

export type Victim = "controller" | "sidecar" | "backend";

/**
 * A pause of lognormal length before each turn, the same for a rollout every time: tools that take
 * their time, and stragglers.
 */
const sleepingHarness = twoTurnHarness({
  preface: `
import { createHash } from "node:crypto";
const medianMs = Number(process.env.MEDIAN_MS), sigma = Number(process.env.SIGMA), capMs = Number(process.env.CAP_MS);
function pauseMs(turn) {
  const digest = createHash("sha256").update(process.env.OUTRIGGER_ROLLOUT_ID + ":" + turn).digest();
  const [u, v] = [0, 4].map((at) => (digest.readUInt32LE(at) + 1) / 4294967297);
  return Math.min(capMs, medianMs * Math.exp(sigma * Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v)));
}`,
  beforeTurn: "await new Promise((go) => setTimeout(go, pauseMs(turn)));",
});

export interface ScheduleExperiment {
  readonly kind: "sync" | "collocated-async" | "async";
  readonly maxStalenessSteps: number;
  readonly groupsPerStep: number;
  readonly groupSize: number;
  readonly concurrency: number;
  readonly pauses: { readonly medianMs: number; readonly sigma: number; readonly capMs: number };
}

/** The smallest experiment whose rollouts differ in length, under one schedule. */
export function writeScheduleExperiment(
  directory: string,
  { kind, maxStalenessSteps, groupsPerStep, groupSize, concurrency, pauses }: ScheduleExperiment,
): Promise<string> {
  return writeTinyExperiment(
    directory,
    {
      name: `schedule-${kind}`,
      harness: {
        timeoutMs: 120_000,
        concurrency,
        environment: {
          MEDIAN_MS: String(pauses.medianMs),
          SIGMA: String(pauses.sigma),
          CAP_MS: String(pauses.capMs),
        },
      },
      schedule: { kind, maxStalenessSteps, groupsPerStep, groupSize },
      failurePolicy: { "infra-error": { maxRequeues: 50 } },
      // A call that comes before a restarted sidecar has checked its engine is not trained; in steps
      // as small as these one such call is above the usual limits.
      limits: { maxIncompleteFraction: 1, capture: { maxZeroCapture: 1 } },
      evaluation: { before: false, after: false },
    },
    { "harness.mjs": sleepingHarness },
  );
}

/** A run whose schedule log is watched, and whose processes are killed one by one. */
export class ScheduleSession extends RunSessions {
  /** The whole lines of the schedule's log so far. */
  events(): readonly ScheduleEvent[] {
    const file = join(this.directory, "schedule.jsonl");
    if (!existsSync(file)) return [];
    const text = readFileSync(file, "utf8");
    return parseScheduleLog(text.slice(0, text.lastIndexOf("\n") + 1));
  }

  /** Resolves when the log says so once more than now; the wait is the fault injector's. */
  async next(type: ScheduleEvent["type"], timeoutMs: number): Promise<void> {
    // Not by place: a session that begins puts the calls of the one before in between.
    const count = (): number => this.events().filter((event) => event.type === type).length;
    const before = count();
    const deadlineMs = Date.now() + timeoutMs;
    while (count() <= before) {
      if (!this.isAlive || Date.now() > deadlineMs) {
        await this.killController();
        throw new Error(`no ${type} after ${before} of them:\n${await this.lastOutput()}`);
      }
      await new Promise((done) => setTimeout(done, 3));
    }
  }

  async kill(victim: Victim): Promise<void> {
    if (victim === "controller") await this.killController();
    else killProcess(this.pidOf(victim));
  }
}
