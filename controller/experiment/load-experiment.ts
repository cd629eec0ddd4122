import { dirname, resolve } from "node:path";
import process from "node:process";
import type { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { AttemptEndReason } from "../../core/rollouts/attempt-end-reason.ts";
import {
  defaultFailurePolicy,
  type FailurePolicy,
  type FailureRule,
} from "../../core/rollouts/failure-policy.ts";
import { readConfigFile } from "../../runtime/read-config-file.ts";
import { plainVariables } from "../runners/harness-environment.ts";
import { type ExperimentFile, experimentSchema } from "./experiment-schema.ts";

type BackendSettings = ExperimentFile["backend"];

/** An experiment with every path absolute and the failure policy complete, whoever trains. */
export interface ServedExperiment extends Omit<ExperimentFile, "failurePolicy" | "backend"> {
  /** Absolute path of the file it was read from. */
  readonly file: string;
  /** What the file says; `seed` may have been given in its place. */
  readonly seedOfFile: number;
  readonly failurePolicy: FailurePolicy;
}

/** One that this program trains, with a backend behind the port. */
export interface Experiment extends ServedExperiment {
  readonly backend: Exclude<BackendSettings, { readonly kind: "agl" }>;
}

/** One that an Agent Lightning trainer drives from outside. */
export interface AglExperiment extends ServedExperiment {
  readonly backend: Extract<BackendSettings, { readonly kind: "agl" }>;
}

export function isAglExperiment(
  experiment: Experiment | AglExperiment,
): experiment is AglExperiment {
  return experiment.backend.kind === "agl";
}

export interface ExperimentOverrides {
  readonly seed?: number | undefined;
  readonly steps?: number | undefined;
  readonly compute?: string | undefined;
  /** In place of the file's `backend.kind`; the rest of its backend section stays. */
  readonly backend?: string | undefined;
}

/**
 * Reads and checks the file of an experiment that this program trains.
 *
 * @throws OutriggerError `config-invalid` (origin user) that lists every problem with its path;
 * `trained-outside` (user) where `backend.kind` is one that drives us
 */
export function loadExperiment(path: string, overrides: ExperimentOverrides = {}): Experiment {
  const experiment = loadAnyExperiment(path, overrides);
  if (!isAglExperiment(experiment)) return experiment;
  throw new OutriggerError(
    "trained-outside",
    `${experiment.file}: backend.kind agl is trained by Agent Lightning, not by this program`,
    {
      origin: "user",
      hint: "`outrigger run` serves it to the trainer; see docs/agent-lightning.md.",
    },
  );
}

/** Reads and checks an experiment file of any kind; see `loadExperiment`. */
export function loadAnyExperiment(
  path: string,
  overrides: ExperimentOverrides = {},
): Experiment | AglExperiment {
  const file = resolve(path);
  const value = withServedDefaults(withBackend(readConfigFile(file), overrides.backend));
  const parsed = experimentSchema.safeParse(value);
  const problems = parsed.success ? crossChecks(parsed.data) : describeIssues(parsed.error);
  if (!parsed.success || problems.length > 0) {
    throw new OutriggerError(
      "config-invalid",
      `invalid experiment ${file}:\n${problems.map((p) => `  ${p}`).join("\n")}`,
      { origin: "user", hint: "schema/experiment.schema.json describes every field." },
    );
  }
  return resolveExperiment(file, parsed.data, overrides);
}

function withBackend(value: unknown, kind: string | undefined): unknown {
  const file = value as Readonly<Record<string, unknown>> | null;
  const backend = file?.["backend"];
  if (kind === undefined || typeof backend !== "object" || backend === null) return value;
  return { ...file, backend: { ...backend, kind } };
}

/** What a trainer outside brings itself need not be in the file; what is there is checked all the same. */
function withServedDefaults(value: unknown): unknown {
  const file = value as Readonly<Record<string, unknown>> | null;
  const backend = file?.["backend"] as Readonly<Record<string, unknown>> | null | undefined;
  if (typeof backend !== "object" || backend?.["kind"] !== "agl") return value;
  return {
    tasks: { train: { file: "brought-by-the-trainer" } },
    reward: { fromEvents: "last" },
    evaluation: { before: false, after: false },
    ...file,
  };
}

function describeIssues(error: z.ZodError): string[] {
  return error.issues.flatMap((issue) => describeIssue(issue, []));
}

/** A failed union says little by itself: the branch that got furthest says what is wrong. */
function describeIssue(issue: z.core.$ZodIssue, prefix: readonly PropertyKey[]): string[] {
  const path = [...prefix, ...issue.path];
  if (issue.code === "invalid_union" && issue.errors.length > 0) {
    const depth = (branch: readonly z.core.$ZodIssue[]): number =>
      Math.max(...branch.map((i) => i.path.length * 2 - (i.code === "unrecognized_keys" ? 1 : 0)));
    const branches = [...issue.errors].sort((a, b) => depth(b) - depth(a) || a.length - b.length);
    const best = branches[0] ?? [];
    if (depth(best) > 0) return best.flatMap((inner) => describeIssue(inner, path));
    if (path.join(".") === "reward") return [noReward];
  }
  const where = path.length === 0 ? "(top level)" : path.map(String).join(".");
  return [`${where}: ${issue.message}`];
}

const noReward =
  "reward: says nothing; give reward.verifier: { command: [...] }, a program that grades, or reward.fromEvents: last | sum | max, for rewards that are posted";

function crossChecks(file: ExperimentFile): string[] {
  const problems = [...rangeProblems(file.algorithm), ...reservedProblems(file.harness)];
  const evaluates =
    file.evaluation.before || file.evaluation.after || file.evaluation.everySteps !== undefined;
  if (evaluates && file.tasks.heldOut === undefined) {
    problems.push("tasks.heldOut: missing, but evaluation asks for it (or set its switches false)");
  }
  if ("fromEvents" in file.reward && !file.harness.mayReward) {
    problems.push(
      "reward.fromEvents: needs harness.mayReward: true, else nothing may post rewards",
    );
  }
  const { backend } = file;
  if (backend.kind === "tinker" && backend.engines !== undefined && backend.url === undefined) {
    problems.push(
      "backend.engines: needs backend.url, of a server that trains LoRA; the one here trains models in full",
    );
  }
  const { train } = file.sampling;
  if (train.temperature === 0) {
    problems.push("sampling.train.temperature: 0 samples nothing; training needs it above 0");
  }
  for (const name of ["topP", "topK"] as const) {
    const value = train[name];
    if (value !== undefined && !(name === "topP" ? value === 1 : value <= 0)) {
      problems.push(
        `sampling.train.${name}: cutting the distribution makes sampling logprobs differ from the policy's; leave it out`,
      );
    }
  }
  for (const [index, pattern] of file.capture.redact.entries()) {
    try {
      new RegExp(pattern, "u");
    } catch (error) {
      problems.push(`capture.redact.${index}: ${(error as Error).message}`);
    }
  }
  return problems;
}

/** Ranges that hold nothing would mask or clip every token. */
function rangeProblems({ loss, correction }: ExperimentFile["algorithm"]): string[] {
  const problems: string[] = [];
  if ("clipLow" in loss && loss.clipLow >= loss.clipHigh) {
    problems.push(
      `algorithm.loss.clipLow: ${loss.clipLow} is not below clipHigh, ${loss.clipHigh}; they bound the ratio, 1 lies between them`,
    );
  }
  if (correction.kind === "mask" && correction.min >= correction.max) {
    problems.push(
      `algorithm.correction.min: ${correction.min} is not below max, ${correction.max}`,
    );
  }
  return problems;
}

/** A task may not replace what the runner itself gives the harness. */
function reservedProblems({ fromTask, variables }: ExperimentFile["harness"]): string[] {
  const endpoints = new Set(Object.values(variables).flat());
  return Object.keys(fromTask).flatMap((name) => {
    const isEndpoint = endpoints.has(name) || /^(OPENAI_(API_KEY|BASE_URL)$|ANTHROPIC_)/.test(name);
    const why = isEndpoint
      ? "points the harness at the sidecar"
      : name.startsWith("OUTRIGGER_")
        ? "says which attempt this is"
        : plainVariables.some((plain) => plain === name)
          ? "is what programs need to run at all"
          : undefined;
    return why === undefined
      ? []
      : [`harness.fromTask.${name}: ${name} ${why} and is set by the runner; choose another name`];
  });
}

function resolveExperiment(
  file: string,
  data: ExperimentFile,
  overrides: ExperimentOverrides,
): Experiment | AglExperiment {
  const folder = dirname(file);
  const at = (path: string): string => resolve(folder, path);
  const commandAt = (argv: readonly string[]): string[] =>
    argv.map((item, index) =>
      /^\.{1,2}\//.test(item) ? at(item) : index === 0 && item === "node" ? process.execPath : item,
    );
  const sourceAt = (source: ExperimentFile["tasks"]["train"]): typeof source =>
    "file" in source
      ? { file: at(source.file) }
      : { ...source, command: commandAt(source.command) };
  const { heldOut } = data.tasks;
  const { backend: _backend, ...shared } = data;
  const served: ServedExperiment = {
    ...shared,
    file,
    seedOfFile: data.seed,
    seed: overrides.seed ?? data.seed,
    tasks: {
      ...data.tasks,
      train: sourceAt(data.tasks.train),
      ...(heldOut && { heldOut: sourceAt(heldOut) }),
    },
    harness: {
      ...data.harness,
      command: commandAt(data.harness.command),
      ...(data.harness.cwd !== undefined && { cwd: at(data.harness.cwd) }),
    },
    reward:
      "verifier" in data.reward
        ? {
            verifier: {
              ...data.reward.verifier,
              command: commandAt(data.reward.verifier.command),
            },
          }
        : data.reward,
    schedule: { ...data.schedule, steps: overrides.steps ?? data.schedule.steps },
    failurePolicy: completePolicy(data.failurePolicy),
  };
  if (data.backend.kind === "agl") return { ...served, backend: data.backend };
  const engines = data.backend.kind === "tinker" ? data.backend.engines : undefined;
  return {
    ...served,
    backend: {
      ...data.backend,
      ...(engines !== undefined && {
        engines: { ...engines, adapterDirectory: at(engines.adapterDirectory) },
      }),
      model: at(data.backend.model),
      compute: overrides.compute ?? data.backend.compute,
    },
  };
}

function completePolicy(rules: ExperimentFile["failurePolicy"]): FailurePolicy {
  const complete: Record<AttemptEndReason, FailureRule> = { ...defaultFailurePolicy };
  for (const [reason, rule] of Object.entries(rules) as [AttemptEndReason, object][]) {
    const given = Object.fromEntries(Object.entries(rule).filter(([, v]) => v !== undefined));
    complete[reason] = { ...complete[reason], ...given };
  }
  return complete;
}
