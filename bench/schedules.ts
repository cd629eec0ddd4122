/**
 * The schedules in real time: `outrigger run` with sidecar and native backend on loopback, the same
 * tasks and the same pauses of lognormal length under each schedule, beside `sync` in the same run.
 * `npx tsx bench/schedules.ts [--steps 10] [--median-ms 500] [--json]`
 */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
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
    json: { type: "boolean", default: false },
  },
});
const steps = Number(flags.steps);
const medianMs = Number(flags["median-ms"]);
const groupSize = 4;
const groupsPerStep = 2;

interface Outcome {
  readonly kind: ScheduleExperiment["kind"];
  readonly bound: number;
  readonly seconds: number;
  readonly rolloutsPerMinute: number;
  /** Versions between a group's admission and its update, over groups. */
  readonly meanStaleness: number;
  readonly maxStaleness: number;
  readonly violations: readonly string[];
}

const groupIdOf = (rolloutId: string): string => rolloutId.slice(0, rolloutId.lastIndexOf("-"));

const root = mkdtempSync(join(tmpdir(), "outrigger-bench-schedules-"));
const outcomes: Outcome[] = [];
try {
  for (const [kind, bound] of [
    ["sync", 0],
    ["collocated-async", 2],
    ["collocated-async", 4],
    ["async", 4],
  ] as const) {
    outcomes.push(await measure(kind, bound));
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
    "| schedule | k | seconds | rollouts/min | gain over sync | bound k + 1 | staleness mean / max | log |",
  );
  console.log("|---|--:|--:|--:|--:|--:|--:|---|");
  for (const one of outcomes) {
    const gain = (one.rolloutsPerMinute / base.rolloutsPerMinute).toFixed(2);
    const log = one.violations.length === 0 ? "sound" : `${one.violations.length} violations`;
    console.log(
      `| ${one.kind} | ${one.bound} | ${one.seconds.toFixed(1)} | ${one.rolloutsPerMinute.toFixed(0)} | ${gain} | ${one.bound + 1} | ${one.meanStaleness.toFixed(2)} / ${one.maxStaleness} | ${log} |`,
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
    concurrency: groupsPerStep * groupSize,
    pauses: { medianMs, sigma: 1.2, capMs: 10 * medianMs },
  });
  const session = new ScheduleSession(file, join(home, "run"));
  try {
    session.start(steps);
    const end = await session.ended();
    if (end !== 0) throw new Error(`the run ended with ${end}:\n${session.output}`);
    return judge(kind, bound, session.events());
  } finally {
    await session.destroy();
  }
}

/** From the first admission to the last publication; starting and ending processes is not in it. */
function judge(
  kind: ScheduleExperiment["kind"],
  bound: number,
  events: readonly ScheduleEvent[],
): Outcome {
  const report = buildScheduleLogReport(events, groupIdOf);
  const violations = checkScheduleLog(events, {
    maxStaleness: bound,
    isDeviceShared: kind !== "async",
    groupIdOf,
    turnCountOf: () => undefined,
    rolloutIdsOf: (groupId) => Array.from({ length: groupSize }, (_, i) => `${groupId}-${i}`),
  });
  const isLate = report.staleness.max > bound;
  return {
    kind,
    bound,
    seconds: report.durationMs / 1000,
    rolloutsPerMinute: report.rolloutsPerHour / 60,
    meanStaleness: report.staleness.mean,
    maxStaleness: report.staleness.max,
    violations: isLate ? [...violations, "a group was trained above the bound"] : violations,
  };
}
