import { readFile, writeFile } from "node:fs/promises";
import { Command, InvalidArgumentError, Option } from "commander";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { ScheduleSettings } from "../../core/scheduling/decide-schedule.ts";
import {
  type DurationDistribution,
  generateWorkload,
} from "../../core/scheduling/generate-workload.ts";
import { encodeScheduleEvent, parseScheduleLog } from "../../core/scheduling/schedule-event.ts";
import {
  buildScheduleLogReport,
  type ScheduleLogReport,
} from "../../core/scheduling/schedule-log-report.ts";
import { buildScheduleReport, type ScheduleReport } from "../../core/scheduling/schedule-report.ts";
import { simulateSchedule } from "../../core/scheduling/simulate-schedule.ts";
import type { CallOrder } from "../../core/scheduling/simulated-engine.ts";
import { targetRolloutCount } from "../../core/scheduling/target-rollout-count.ts";
import { maxDurationMs, parseWorkload, type Workload } from "../../core/scheduling/workload.ts";
import { invocation } from "../../runtime/invocation.ts";

interface SimulateOptions {
  readonly schedule: ScheduleSettings["kind"];
  readonly staleness: number;
  readonly onStale: "wait" | "drop";
  readonly callOrder: CallOrder;
  readonly targetRollouts?: number;
  readonly cutShare?: number;
  readonly cutGraceMs: number;
  readonly json?: string | true;
  readonly log?: string;
}

interface GenerateOptions {
  readonly distribution: "lognormal" | "pareto";
  readonly sigma: number;
  readonly alpha: number;
  readonly medianMs: number;
  readonly capMs: number;
  readonly turnMs: number;
  readonly toolShare: number;
  readonly seed: number;
  readonly steps: number;
  readonly spareGroups: number;
  readonly slots: number;
  readonly groupsPerStep: number;
  readonly groupSize: number;
  readonly stepMs: number;
  readonly publishMs: number;
  readonly out?: string;
}

const maxRolloutCount = 1_000_000;
/** As in an experiment: schedule.maxStalenessSteps. */
const maxStaleness = 1000;

const jsonSummary = "write the report as JSON to a file, or to stdout instead of the table";

/** `outrigger simulate`: a schedule on a virtual clock, and the workloads for it. */
export function simulateCommand(): Command {
  return new Command("simulate")
    .description("Run a schedule's decision code on a virtual clock and report what it would do")
    .argument("<workload>", "workload file (rl-schedule-workload/1)")
    .addOption(
      new Option("--schedule <kind>", "which schedule")
        .choices(["sync", "collocated-async", "async"])
        .default("collocated-async"),
    )
    .option("--staleness <k>", "staleness bound in versions (sync is always 0)", staleness, 2)
    .addOption(
      new Option("--on-stale <policy>", "hold updates up for old groups, or give them up")
        .choices(["wait", "drop"])
        .default("wait"),
    )
    .addOption(
      new Option("--call-order <order>", "which held call gets a free slot")
        .choices(["fifo", "oldest-first"])
        .default("fifo"),
    )
    .option(
      "--target-rollouts <n>",
      "unfinished rollouts to keep active (default: slots / share of time in calls)",
      positiveNumber,
    )
    .option(
      "--cut-share <share>",
      "tail policy: cut a group's stragglers once this share of it has ended",
      share,
    )
    .option("--cut-grace-ms <ms>", "and nothing of it has ended for this long", amount, 30_000)
    .option("--json [file]", jsonSummary)
    .option("--log <file>", "write the event log, one JSON object a line")
    .action(simulate)
    .addCommand(generateSubcommand())
    .addCommand(reportSubcommand());
}

function reportSubcommand(): Command {
  return (
    new Command("report")
      .description(
        "Report what a schedule's log says: schedule.jsonl of a run, or --log of a simulation",
      )
      .argument("<log>", "event log, one JSON object a line")
      // For --help: the command above has the same one and takes it wherever it stands.
      .option("--json [file]", jsonSummary)
      .action((path: string, _options: unknown, command: Command) =>
        reportLog(path, command.optsWithGlobals<Pick<SimulateOptions, "json">>()),
      )
  );
}

function generateSubcommand(): Command {
  return new Command("generate")
    .description("Write a seeded workload: the same options give the same file")
    .addOption(
      new Option("--distribution <kind>", "length of rollouts")
        .choices(["lognormal", "pareto"])
        .default("lognormal"),
    )
    .option("--sigma <sigma>", "lognormal: spread", positiveNumber, 1.2)
    .option("--alpha <alpha>", "pareto: tail exponent", positiveNumber, 1.3)
    .option("--median-ms <ms>", "median length of a rollout", positiveNumber, 30_000)
    .option("--cap-ms <ms>", "longest rollout", positiveNumber, 300_000)
    .option(
      "--turn-ms <ms>",
      "mean length of a turn, call and tool together",
      positiveNumber,
      3_000,
    )
    .option("--tool-share <share>", "part of a turn that is tool time", share, 0.2)
    .option("--seed <seed>", "seed", wholeNumber, 1)
    .option("--steps <n>", "updates", positiveWhole, 60)
    .option(
      "--spare-groups <n>",
      "groups beyond the needed, for schedules that drop",
      wholeNumber,
      0,
    )
    .option("--slots <n>", "concurrent calls of the engine", positiveWhole, 32)
    .option("--groups-per-step <n>", "groups in one update", positiveWhole, 8)
    .option("--group-size <n>", "rollouts in one group", positiveWhole, 8)
    .option("--step-ms <ms>", "one optimizer step", amount, 20_000)
    .option("--publish-ms <ms>", "publishing a version, with the gate shut", amount, 1_000)
    .option("--out <file>", "file to write (default: stdout)")
    .action(generate);
}

async function simulate(path: string, options: SimulateOptions): Promise<void> {
  const workload = parseWorkload(await readJson(path));
  refuseShort(workload);
  const settings = buildSettings(workload, options);
  const { callOrder } = options;
  const events = simulateSchedule(workload, { settings, callOrder });
  const report = buildScheduleReport(workload, events, settings);
  const syncSettings: ScheduleSettings = {
    ...settings,
    kind: "sync",
    maxStaleness: 0,
    tail: { kind: "wait" },
  };
  const sync = buildScheduleReport(
    workload,
    simulateSchedule(workload, { settings: syncSettings, callOrder }),
    syncSettings,
  );
  const gainOverSync = report.throughput.rolloutsPerHour / sync.throughput.rolloutsPerHour;
  if (options.log !== undefined) {
    const lines = events.map((event) => `${encodeScheduleEvent(event)}\n`);
    await writeText(options.log, lines.join(""));
  }
  const json = `${JSON.stringify({ format: "outrigger-schedule-report/1", gainOverSync, ...report }, null, 2)}\n`;
  if (typeof options.json === "string") await writeText(options.json, json);
  process.stdout.write(options.json === true ? json : reportTable(report, gainOverSync));
  const wanted = workload.steps * workload.batch.groupsPerStep;
  const { trained, dropped } = report.groups;
  if (trained < wanted) {
    process.stderr.write(
      `only ${report.stepCount} of ${workload.steps} steps, with ${trained} of ${wanted} groups: ${dropped} were dropped, and the workload has too few spare ones\n`,
    );
  }
}

/** What cannot be done even where no group is dropped. */
function refuseShort({ steps, batch, groups }: Workload): void {
  const possible = Math.floor(groups.length / batch.groupsPerStep);
  if (possible >= steps) return;
  const needed = steps * batch.groupsPerStep;
  throw new OutriggerError(
    "bad-workload",
    `workload: ${steps} steps of ${batch.groupsPerStep} groups need ${needed} groups; there are ${groups.length}, enough for ${possible} steps`,
    { origin: "user", hint: `Set steps to ${possible}, or add groups.` },
  );
}

function buildSettings(workload: Workload, options: SimulateOptions): ScheduleSettings {
  const turns = workload.groups.flatMap((g) => g.rollouts).flatMap((r) => r.turns);
  const callMs = turns.reduce((sum, turn) => sum + turn.callMs, 0);
  const toolMs = turns.reduce((sum, turn) => sum + turn.toolMs, 0);
  const { cutShare, cutGraceMs } = options;
  return {
    kind: options.schedule,
    groupsPerStep: workload.batch.groupsPerStep,
    maxStaleness: options.schedule === "sync" ? 0 : options.staleness,
    onStale: options.onStale,
    tail:
      cutShare === undefined
        ? { kind: "wait" }
        : { kind: "cut", minFinishedShare: cutShare, graceMs: cutGraceMs },
    targetRolloutCount:
      options.targetRollouts ?? targetRolloutCount(workload.engine.slots, callMs, toolMs),
  };
}

async function reportLog(path: string, { json }: Pick<SimulateOptions, "json">): Promise<void> {
  const events = parseScheduleLog(await readLog(path));
  const report = buildScheduleLogReport(events, (rolloutId) =>
    rolloutId.slice(0, rolloutId.lastIndexOf("-")),
  );
  const text = `${JSON.stringify(report, null, 2)}\n`;
  if (typeof json === "string") await writeText(json, text);
  process.stdout.write(json === true ? text : logReportTable(report));
}

function logReportTable(report: ScheduleLogReport): string {
  const percent = (fraction: number) => `${(100 * fraction).toFixed(1)} %`;
  const { groups, staleness } = report;
  const histogram = Object.entries(staleness.histogram).map(([k, count]) => `${k}: ${count}`);
  const rows: readonly (readonly [string, string])[] = [
    ["steps", `${report.stepCount} in ${(report.durationMs / 1000).toFixed(1)} s`],
    ["throughput", `${report.rolloutsPerHour.toFixed(0)} rollouts/h`],
    ["trainer busy", percent(report.trainerBusyFraction)],
    ["gate shut", percent(report.gateShutFraction)],
    [
      "staleness of groups",
      `${histogram.join(", ")} (mean ${staleness.mean.toFixed(2)}, max ${staleness.max})`,
    ],
    [
      "groups",
      `${groups.admitted} admitted, ${groups.trained} trained, ${groups.dropped} dropped, ${groups.unfinished} unfinished`,
    ],
  ];
  return rows.map(([name, value]) => `${name.padEnd(28)}${value}\n`).join("");
}

async function readLog(path: string): Promise<string> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    throw new OutriggerError("bad-schedule-log", `cannot read ${path}: ${String(cause)}`, {
      origin: "user",
      hint: "Name the schedule.jsonl of a run's directory, or what simulate --log wrote.",
      cause,
    });
  }
}

function reportTable(report: ScheduleReport, gainOverSync: number): string {
  const percent = (fraction: number) => `${(100 * fraction).toFixed(1)} %`;
  const { device, staleness, lengthBias, groups, bounds, throughput } = report;
  const histogram = Object.entries(staleness.histogram).map(([k, count]) => `${k}: ${count}`);
  // Only who waits is bound by the staleness; who gives rollouts up trades their length for time.
  const isBound = groups.dropped === 0 && report.cutRolloutCount === 0;
  const gainBound = isBound
    ? `bound: about ${bounds.stalenessGain}`
    : "rollouts were given up: see length bias";
  const rows: readonly (readonly [string, string])[] = [
    ["workload", report.workload],
    ["schedule", `${report.schedule}, staleness bound ${report.stalenessBound}, ${report.onStale}`],
    ["steps", `${report.stepCount} in ${(report.durationMs / 1000).toFixed(1)} s`],
    [
      "throughput",
      `${throughput.stepsPerHour.toFixed(1)} steps/h, ${throughput.rolloutsPerHour.toFixed(0)} rollouts/h`,
    ],
    ["gain over sync", `${gainOverSync.toFixed(2)} (${gainBound})`],
    [
      "device busy",
      `${percent(device.busyFraction)} (engine ${percent(device.engineBusyFraction)}, trainer ${percent(device.trainerBusyFraction)})`,
    ],
    ["share of device-busy bound", percent(bounds.shareOfDeviceBusyBound)],
    [
      "staleness of groups",
      `${histogram.join(", ")} (mean ${staleness.mean.toFixed(2)}, max ${staleness.max})`,
    ],
    [
      "length bias",
      `${lengthBias.ratio.toFixed(3)} (model time per rollout: trained ${(lengthBias.trainedMeanCallMs / 1000).toFixed(1)} s, admitted ${(lengthBias.admittedMeanCallMs / 1000).toFixed(1)} s)`,
    ],
    [
      "groups",
      `${groups.trained} trained, ${groups.dropped} dropped, ${groups.unfinished} unfinished; ${report.cutRolloutCount} rollouts cut`,
    ],
  ];
  return rows.map(([name, value]) => `${name.padEnd(28)}${value}\n`).join("");
}

async function generate(options: GenerateOptions): Promise<void> {
  const { medianMs, sigma, alpha } = options;
  refuseHuge(options);
  const duration: DurationDistribution =
    options.distribution === "lognormal"
      ? { kind: "lognormal", medianMs, sigma }
      : { kind: "pareto", medianMs, alpha };
  const spread = duration.kind === "lognormal" ? `sigma ${sigma}` : `alpha ${alpha}`;
  const workload = generateWorkload({
    ...options,
    name: `${duration.kind} ${spread}, seed ${options.seed}`,
    spareGroupCount: options.spareGroups,
    duration,
  });
  const text = `${JSON.stringify(workload)}\n`;
  if (options.out === undefined) process.stdout.write(text);
  else await writeText(options.out, text);
}

/** A workload is held and written as a whole. */
function refuseHuge({ steps, spareGroups, groupsPerStep, groupSize }: GenerateOptions): void {
  const rolloutCount = (steps * groupsPerStep + spareGroups) * groupSize;
  if (rolloutCount <= maxRolloutCount) return;
  throw new OutriggerError(
    "bad-workload",
    `workload: ${rolloutCount} rollouts are more than ${maxRolloutCount}`,
    { origin: "user", hint: "Lower --steps, --groups-per-step, --group-size or --spare-groups." },
  );
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch (cause) {
    const what = cause instanceof SyntaxError ? "is not JSON" : "cannot be read";
    throw new OutriggerError("bad-workload", `workload ${path} ${what}: ${String(cause)}`, {
      origin: "user",
      hint: `\`${invocation()} simulate generate --out FILE\` writes one.`,
      cause,
    });
  }
}

async function writeText(path: string, text: string): Promise<void> {
  try {
    await writeFile(path, text);
  } catch (cause) {
    throw new OutriggerError("output-not-written", `cannot write ${path}: ${String(cause)}`, {
      origin: "user",
      hint: "Name a file in a folder that exists and can be written.",
      cause,
    });
  }
}

function parseNumber(text: string, isValid: (value: number) => boolean, what: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value) || !isValid(value)) {
    throw new InvalidArgumentError(`It must be ${what}.`);
  }
  return value;
}

function wholeNumber(text: string): number {
  return parseNumber(text, (n) => Number.isSafeInteger(n) && n >= 0, "a whole number, 0 or more");
}

function positiveWhole(text: string): number {
  return parseNumber(text, (n) => Number.isSafeInteger(n) && n > 0, "a whole number, 1 or more");
}

function positiveNumber(text: string): number {
  return parseNumber(text, (n) => n > 0 && n <= maxDurationMs, "a number above 0, at most 1e12");
}

function amount(text: string): number {
  return parseNumber(text, (n) => n >= 0 && n <= maxDurationMs, "a number from 0 to 1e12");
}

function staleness(text: string): number {
  const isBound = (n: number) => Number.isSafeInteger(n) && n >= 0 && n <= maxStaleness;
  return parseNumber(text, isBound, `a whole number from 0 to ${maxStaleness}`);
}

function share(text: string): number {
  return parseNumber(text, (n) => n >= 0 && n < 1, "a number from 0 to below 1");
}
