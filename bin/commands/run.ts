import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { delimiter, isAbsolute, join, relative } from "node:path";
import process from "node:process";
import { Command, Option } from "commander";
import { computeNames } from "../../backends/native/compute/compute-choice.ts";
import {
  type AglExperiment,
  type Experiment,
  isAglExperiment,
  loadAnyExperiment,
} from "../../controller/experiment/load-experiment.ts";
import { readTasks, type Task } from "../../controller/experiment/read-tasks.ts";
import { taskProblems } from "../../controller/experiment/task-problems.ts";
import type { RunResult } from "../../controller/report/build-result.ts";
import { openRunDirectory, type RunDirectory } from "../../controller/run-directory.ts";
import { runExperiment } from "../../controller/run-experiment.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { invocation, quoteForShell } from "../../runtime/invocation.ts";
import { openLog } from "../../runtime/log.ts";
import { listenForShutdown } from "../../runtime/shutdown.ts";
import { parseCount } from "../option-values.ts";
import { openRunDisplay, type RunDisplay } from "../run-display.ts";
import { startRunProcesses } from "../start-run-processes.ts";
import { refuseIncapable } from "./backend-check.ts";

interface RunFlags {
  readonly seed?: number;
  readonly out?: string;
  readonly backend?: "native" | "tinker";
  readonly compute?: string;
  readonly steps?: number;
  readonly resume?: boolean;
  readonly logLevel: "debug" | "info" | "warn" | "error";
  readonly printConfig?: boolean;
}

const runsRoot = ".outrigger/runs";

/** `outrigger run EXPERIMENT`: the whole of a run on this machine. */
export function runCommand(): Command {
  return new Command("run")
    .description("Train: start controller, sidecar and backend for an experiment file.")
    .argument("<experiment>", "YAML file; schema/experiment.schema.json describes it")
    .option("--seed <number>", "seed of task order, sampling and initial state", parseCount)
    .option("--out <dir>", `directory of the run (default: the next one in ${runsRoot})`)
    .addOption(
      new Option("--backend <kind>", "another trainer backend than the file's").choices([
        "native",
        "tinker",
      ]),
    )
    .addOption(
      new Option("--compute <name>", "library and device of the native backend").choices(
        computeNames,
      ),
    )
    .option("--steps <number>", "optimizer steps in all; 0 evaluates only", parseCount)
    .option("--resume", "go on with the latest run of this experiment, or with the one in --out")
    .addOption(
      new Option("--log-level <level>", "into controller.log")
        .choices(["debug", "info", "warn", "error"])
        .default("info"),
    )
    .option("--print-config", "print the experiment with every default, and end")
    .action(async (file: string, flags: RunFlags) => {
      await run(file, flags);
    });
}

async function run(file: string, flags: RunFlags): Promise<void> {
  const asked = loadAnyExperiment(file, flags);
  if (flags.printConfig === true) {
    process.stdout.write(`${JSON.stringify(asked, null, 2)}\n`);
    return;
  }
  if (isAglExperiment(asked)) await serve(asked, flags);
  else await train(asked, flags);
}

/** Agent Lightning's trainer drives; nothing is trained here. */
async function serve(experiment: AglExperiment, flags: RunFlags): Promise<void> {
  checkFiles(experiment);
  const { serveAgl } = await import("../serve-agl.ts");
  const directory = openRunDirectory({
    name: experiment.name,
    out: flags.out,
    runsRoot,
    isResume: flags.resume === true,
    newIdentity: () => newIdentity(experiment, "none"),
  });
  const line = (text: string): void => void process.stdout.write(`${text}\n`);
  const shutdown = listenForShutdown((name) =>
    line(`${name}: draining; once more to stop at once`),
  );
  try {
    line(`${directory.isResumed ? "resuming" : "run"}: ${shown(directory.path)}`);
    const log = openLog({
      level: flags.logLevel,
      process: "controller",
      file: join(directory.path, "controller.log"),
    });
    const { signal } = shutdown;
    const { env: environment } = process;
    await serveAgl({ experiment, directory, log, signal, environment, now: Date.now, line });
    const paths = [experiment.file, shown(directory.path)].map(quoteForShell);
    line(`stopped; go on with: ${invocation()} run ${paths[0]} --resume --out ${paths[1]}`);
  } finally {
    directory.release();
    shutdown.release();
  }
}

function newIdentity(
  { name, file, seed }: Experiment | AglExperiment,
  compute: string,
): RunDirectory["identity"] {
  return {
    runId: randomUUID().slice(0, 13).replace("-", ""),
    name,
    experimentFile: file,
    seed,
    compute,
    createdAtMs: Date.now(),
  };
}

async function train(asked: Experiment, flags: RunFlags): Promise<void> {
  refuseIncapable(asked);
  checkFiles(asked);
  const tasks = await readAllTasks(asked);
  const directory = openRunDirectory({
    name: asked.name,
    out: flags.out,
    runsRoot,
    isResume: flags.resume === true,
    newIdentity: () => ({
      ...newIdentity(asked, asked.backend.compute),
      backend: flags.backend,
    }),
  });
  const experiment = asResumed(asked, directory, flags);
  const display = openRunDisplay({ stream: process.stdout, now: Date.now });
  const shutdown = listenForShutdown((name) => {
    display.line(`${name}: draining; once more to stop at once`);
  });
  try {
    announce(display, experiment, directory, tasks);
    const log = openLog({
      level: flags.logLevel,
      process: "controller",
      file: join(directory.path, "controller.log"),
    });
    const result = await runExperiment({
      experiment,
      tasks,
      directory,
      observer: display,
      log,
      signal: shutdown.signal,
      environment: process.env,
      now: Date.now,
      startProcesses: (request) => startRunProcesses(experiment, request, log, Date.now),
      onBackend: ({ compute }) => display.line(`compute: ${compute}`),
      openDecoder: () => openDecoder(experiment),
    });
    conclude(display, result, directory.path);
  } finally {
    display.close();
    directory.release();
    shutdown.release();
  }
}

/** The seed and the compute library of a run do not change; its number of steps may. */
function asResumed(asked: Experiment, directory: RunDirectory, flags: RunFlags): Experiment {
  const { seed, compute } = directory.identity;
  if (flags.seed !== undefined && flags.seed !== seed) {
    directory.release();
    throw new OutriggerError(
      "seed-differs",
      `--seed ${flags.seed} differs from the run's seed ${seed}`,
      { origin: "user", hint: "Leave --seed out when resuming, or start a new run." },
    );
  }
  return {
    ...asked,
    seed,
    backend: { ...asked.backend, compute: flags.compute ?? compute },
  };
}

/** What can be known to fail before anything is started. */
function checkFiles({ harness, reward, backend }: Experiment | AglExperiment): void {
  const problems: string[] = [];
  if ("compute" in backend && !computeNames.includes(backend.compute)) {
    const names = computeNames.join(", ");
    problems.push(`backend.compute: there is no ${backend.compute}; it is one of ${names}`);
  }
  const check = (path: string, command: readonly string[]): void => {
    const program = command[0] as string;
    if (!isRunnable(program)) problems.push(`${path}.0: no program ${program} was found`);
    for (const [index, item] of command.entries()) {
      if (
        index > 0 &&
        isAbsolute(item) &&
        /\.[cm]?[jt]s$|\.py$|\.sh$/.test(item) &&
        !existsSync(item)
      ) {
        problems.push(`${path}.${index}: ${item} does not exist`);
      }
    }
  };
  check("harness.command", harness.command);
  if ("verifier" in reward) check("reward.verifier.command", reward.verifier.command);
  if (harness.cwd !== undefined && !existsSync(harness.cwd)) {
    problems.push(`harness.cwd: ${harness.cwd} does not exist`);
  }
  if (backend.kind !== "agl" && !existsSync(backend.model))
    problems.push(`backend.model: ${backend.model} does not exist`);
  if (problems.length === 0) return;
  throw new OutriggerError(
    "experiment-file-missing",
    `the experiment names what is not there:\n${problems.map((p) => `  ${p}`).join("\n")}`,
    { origin: "user", hint: "Paths in an experiment file are relative to that file." },
  );
}

function isRunnable(program: string): boolean {
  if (program.includes("/")) return existsSync(program);
  const folders = (process.env["PATH"] ?? "").split(delimiter);
  return folders.some((folder) => existsSync(join(folder, program)));
}

async function readAllTasks(
  experiment: Experiment,
): Promise<{ readonly train: readonly Task[]; readonly heldOut: readonly Task[] }> {
  const { train, heldOut, idField } = experiment.tasks;
  const tasks = {
    train: await readTasks("tasks.train", train, idField),
    heldOut: heldOut === undefined ? [] : await readTasks("tasks.heldOut", heldOut, idField),
  };
  const problems = [
    ...taskProblems("tasks.train", tasks.train, experiment),
    ...taskProblems("tasks.heldOut", tasks.heldOut, experiment),
  ];
  if (problems.length === 0) return tasks;
  throw new OutriggerError(
    "tasks-invalid",
    `the tasks do not fit the experiment:\n${problems.map((p) => `  ${p}`).join("\n")}`,
    { origin: "user", hint: "harness.fromTask names fields that every task must have." },
  );
}

/** The tokenizer of the policy, for the sample views of the report. */
async function openDecoder(
  experiment: Experiment,
): Promise<((ids: readonly number[]) => string) | undefined> {
  try {
    const { loadPolicyTokenizer } = await import("../../backends/native/model/policy-tokenizer.ts");
    const tokenizer = await loadPolicyTokenizer(experiment.backend.model);
    return (ids) => tokenizer.decode(ids);
  } catch {
    return undefined;
  }
}

function announce(
  display: RunDisplay,
  experiment: Experiment,
  directory: RunDirectory,
  tasks: { readonly train: readonly Task[]; readonly heldOut: readonly Task[] },
): void {
  const { schedule } = experiment;
  display.line(
    `${experiment.name}: ${schedule.steps} steps of ${schedule.groupsPerStep} x ${schedule.groupSize} rollouts, ${schedule.kind}, seed ${experiment.seed}`,
  );
  display.line(`tasks: ${tasks.train.length} to train, ${tasks.heldOut.length} held out`);
  display.line(`${directory.isResumed ? "resuming" : "run"}: ${shown(directory.path)}`);
}

function conclude(display: RunDisplay, result: RunResult, path: string): void {
  const percent = (value: number | null): string => (value === null ? "–" : value.toFixed(3));
  const { before, after } = result.passAt1;
  display.line("");
  display.line(`pass@1: ${percent(before)} before, ${percent(after)} after ${result.steps} steps`);
  display.line(
    `${result.rollouts.total} rollouts, ${result.calls.captured} calls captured, ${result.calls.incomplete} incomplete, ${result.tokens} tokens trained, ${result.wallSeconds.toFixed(0)} s`,
  );
  if (result.checkpoint !== null) display.line(`checkpoint:   ${shown(result.checkpoint)}`);
  display.line(`result:       ${shown(join(path, "result.json"))}`);
  display.line(`reward curve: ${shown(join(path, "reward-curve.svg"))}`);
  display.line(`report:       ${shown(join(path, "report.html"))}`);
}

function shown(path: string): string {
  // A checkpoint may be on a server.
  if (path.includes("://")) return path;
  const near = relative(process.cwd(), path);
  return near.startsWith("..") ? path : near;
}
