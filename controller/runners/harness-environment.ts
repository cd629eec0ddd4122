import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";

export interface HarnessIdentity {
  readonly runId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
}

export interface HarnessEndpoints {
  /** Base URL of the sidecar, without /v1. */
  readonly sidecarUrl: string;
  /** Capability of this attempt alone. */
  readonly token: string;
  readonly model: string;
}

/** What a program needs to run at all; nothing of this is secret. */
export const plainVariables = [
  "PATH",
  "HOME",
  "USER",
  "LANG",
  "LC_ALL",
  "TZ",
  "TMPDIR",
  "SHELL",
  "SystemRoot",
] as const;

/** Marks every process of a run, so that a later controller finds what an earlier one left. */
export const runIdVariable = "OUTRIGGER_RUN_ID";
const attemptIdVariable = "OUTRIGGER_ATTEMPT_ID";

/** Mark the processes of one attempt: ids of attempts are unique only within their run. */
export const attemptMarks = [runIdVariable, attemptIdVariable] as const;

/**
 * The whole environment of one attempt: a few plain variables, what the experiment says, and what
 * points the harness at the sidecar (which always wins).
 *
 * @param inherited Outrigger's own environment
 */
export function buildHarnessEnvironment(
  harness: Experiment["harness"],
  task: Task,
  identity: HarnessIdentity,
  endpoints: HarnessEndpoints,
  inherited: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const { variables } = harness;
  const environment: Record<string, string> = {};
  for (const name of [...plainVariables, ...harness.passEnvironment]) {
    const value = inherited[name];
    if (value !== undefined) environment[name] = value;
  }
  Object.assign(environment, harness.environment);
  for (const [name, path] of Object.entries(harness.fromTask)) {
    environment[name] = requiredText(task, path);
  }
  const set = (names: readonly string[], value: string): void => {
    for (const name of names) environment[name] = value;
  };
  set(variables.openaiBaseUrl, `${endpoints.sidecarUrl}/v1`);
  set(variables.anthropicBaseUrl, endpoints.sidecarUrl);
  set(variables.openaiApiKey, endpoints.token);
  set(variables.anthropicApiKey, endpoints.token);
  set(variables.model, endpoints.model);
  environment[runIdVariable] = identity.runId;
  environment["OUTRIGGER_ROLLOUT_ID"] = identity.rolloutId;
  environment[attemptIdVariable] = identity.attemptId;
  return environment;
}

/** The value at a dotted path; list indexes count as names. Not-text is given as JSON. */
export function taskText(task: Task, path: string): string | undefined {
  let value: unknown = task.fields;
  for (const part of path.split(".")) {
    value =
      typeof value === "object" && value !== null && Object.hasOwn(value, part)
        ? (value as Record<string, unknown>)[part]
        : undefined;
  }
  return value === undefined || typeof value === "string" ? value : JSON.stringify(value);
}

function requiredText(task: Task, path: string): string {
  const text = taskText(task, path);
  if (text !== undefined) return text;
  throw new OutriggerError("task-field-missing", `task ${task.taskId} has no field ${path}`, {
    origin: "user",
    hint: "harness.fromTask names fields that every task must have.",
  });
}

/** The task without what only the verifier may know. */
export function visibleTask(task: Task, verifierOnly: readonly string[]): Task {
  if (verifierOnly.length === 0) return task;
  const fields = Object.fromEntries(
    Object.entries(task.fields).filter(([name]) => !verifierOnly.includes(name)),
  );
  return { taskId: task.taskId, fields };
}
