/**
 * The schedules in real time: `outrigger run` with sidecar and native backend on loopback, the same
 * tasks and the same pauses of lognormal length under each schedule, beside `sync` in the same run.
 * `npx tsx bench/schedules.ts [--steps 10] [--median-ms 500] [--only async:4] [--json]`
 */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { openRunStores } from "../controller/store/open-run-stores.ts";
import { checkScheduleLog } from "../core/scheduling/check-schedule-log.ts";
import type { ScheduleEvent } from "../core/scheduling/schedule-event.ts";
import { buildScheduleLogReport } from "../core/scheduling/schedule-log-report.ts";
import {
  type ScheduleExperiment,
  ScheduleSession,
  writeScheduleExperiment,
} from "../test/e2e/schedules-session.ts";

const { values: flags } = parseArgs({
  options: {
    steps: { type: "string", default: "10" },
    "median-ms": { type: "string", default: "500" },
    only: { type: "string", multiple: true },
    json: { type: "boolean", default: false },
  },
});
const steps = Number(flags.steps);
const medianMs = Number(flags["median-ms"]);
const groupSize = 4;
const groupsPerStep = 2;
const concurrency = groupsPerStep * groupSize;
/** A command may be on its way for so long. */
const commandDelayMs = 2_000;

interface Outcome {
  readonly kind: ScheduleExperiment["kind"];
  readonly bound: number;
  readonly seconds: number;
  readonly rolloutsPerMinute: number;
  /** Seconds that it would take with every place for a rollout, and the trainer, never idle. */
  readonly busySeconds: number;
  /** Versions between a group's admission and its update, over groups. */
  readonly meanStaleness: number;
  readonly maxStaleness: number;
  readonly violations: readonly string[];
}

const groupIdOf = (rolloutId: string): string => rolloutId.slice(0, rolloutId.lastIndexOf("-"));

const schedules = [
  ["sync", 0],
  ["collocated-async", 2],
  ["collocated-async", 4],
  ["async", 2],
  ["async", 4],
] as const;

const root = mkdtempSync(join(tmpdir(), "outrigger-bench-schedules-"));
const outcomes: Outcome[] = [];
try {
  for (const [kind, bound] of schedules) {
    const isWanted = flags.only?.includes(`${kind}:${bound}`) ?? true;
    // The baseline is always measured in the same run.
    if (isWanted || kind === "sync") outcomes.push(await measure(kind, bound));
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}

const base = outcomes[0] as Outcome;
if (flags.json) console.log(JSON.stringify({ steps, medianMs, outcomes }, null, 2));
else {
  console.log(
    `${steps} steps of ${groupsPerStep} x ${groupSize} rollouts, two turns, pauses lognormal (median ${medianMs} ms, sigma 1.2, at most ${10 * medianMs} ms), 8 at a time\n`,
  );
  console.log(
    "| schedule | k | seconds | rollouts/min | gain over sync | bound k + 1 | bound: never idle | staleness mean / max | log |",
  );
  console.log("|---|--:|--:|--:|--:|--:|--:|--:|---|");
  for (const one of outcomes) {
    const gain = (one.rolloutsPerMinute / base.rolloutsPerMinute).toFixed(2);
    const busyBound = (base.seconds / one.busySeconds).toFixed(2);
    const log = one.violations.length === 0 ? "sound" : `${one.violations.length} violations`;
    for (const violation of one.violations) console.error(`${one.kind} ${one.bound}: ${violation}`);
    console.log(
      `| ${one.kind} | ${one.bound} | ${one.seconds.toFixed(1)} | ${one.rolloutsPerMinute.toFixed(0)} | ${gain} | ${one.bound + 1} | ${busyBound} | ${one.meanStaleness.toFixed(2)} / ${one.maxStaleness} | ${log} |`,
    );
  }
}
if (outcomes.some((one) => one.violations.length > 0)) process.exitCode = 1;

async function measure(kind: ScheduleExperiment["kind"], bound: number): Promise<Outcome> {
  const home = join(root, `${kind}-${bound}`);
  mkdirSync(home);
  const file = await writeScheduleExperiment(home, {
    kind,
    maxStalenessSteps: bound,
    groupsPerStep,
    groupSize,
    concurrency,
    pauses: { medianMs, sigma: 1.2, capMs: 10 * medianMs },
  });
  const session = new ScheduleSession(file, join(home, "run"));
  try {
    session.start(steps);
    const end = await session.ended();
    if (end !== 0) throw new Error(`the run ended with ${end}:\n${session.output}`);
    return judge(kind, bound, session.events(), await attemptSeconds(session.directory));
  } finally {
    await session.destroy();
  }
}

/** Of all attempts of trained rollouts together. */
async function attemptSeconds(directory: string): Promise<number> {
  const stores = await openRunStores(directory);
  try {
    let ms = 0;
    for (const { groupIds } of await stores.steps.steps()) {
      for (const groupId of groupIds) {
        for (const { rolloutId } of await stores.rollouts.list({ groupId })) {
          for (const { startedAtMs, endedAtMs } of await stores.rollouts.attempts(rolloutId)) {
            if (startedAtMs !== undefined && endedAtMs !== undefined) ms += endedAtMs - startedAtMs;
          }
        }
      }
    }
    return ms / 1000;
  } finally {
    await stores.close();
  }
}

/** From the first admission to the last publication; starting and ending processes is not in it. */
function judge(
  kind: ScheduleExperiment["kind"],
  bound: number,
  events: readonly ScheduleEvent[],
  sampledSeconds: number,
): Outcome {
  const report = buildScheduleLogReport(events, groupIdOf);
  const violations = checkScheduleLog(events, {
    maxStaleness: bound,
    isDeviceShared: kind !== "async",
    commandDelayMs,
    groupIdOf,
    turnCountOf: () => 2,
    rolloutIdsOf: (groupId) => Array.from({ length: groupSize }, (_, i) => `${groupId}-${i}`),
  });
  const seconds = report.durationMs / 1000;
  const samplingSeconds = sampledSeconds / concurrency;
  const trainingSeconds = report.trainerBusyFraction * seconds;
  return {
    kind,
    bound,
    seconds,
    rolloutsPerMinute: report.rolloutsPerHour / 60,
    busySeconds:
      kind === "async"
        ? Math.max(samplingSeconds, trainingSeconds)
        : samplingSeconds + trainingSeconds,
    meanStaleness: report.staleness.mean,
    maxStaleness: report.staleness.max,
    violations,
  };
}
