import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Call } from "../../core/call.ts";
import type { CapabilityScope } from "../../runtime/capability-token.ts";
import type { ServedExperiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";
import type { Grade } from "../grading/grade.ts";
import { type Grader, gradeFromEvents } from "../grading/grader.ts";
import {
  attemptMarks,
  buildHarnessEnvironment,
  type HarnessEndpoints,
  visibleTask,
} from "../runners/harness-environment.ts";
import type { ProcessIdentity } from "../runners/process-identity.ts";
import { type ProcessEnd, runProcess } from "../runners/run-process.ts";
import type { CallStore } from "../store/call-store.ts";
import type { AttemptEndDetails, StoredRollout } from "../store/rollout-store.ts";
import { type AttemptEnd, decideAttemptEnd, type StopCause } from "./decide-attempt-end.ts";

/** What attempts of one run have in common. */
export interface AttemptContext {
  readonly runId: string;
  readonly experiment: ServedExperiment;
  readonly calls: CallStore;
  /** Absent when rewards come from events. */
  readonly verifier: Grader | undefined;
  /** Resolves when there is a policy to call: nothing is started while a process of ours is down. */
  whenReady(): Promise<void>;
  /** Resolves when every record of calls that have ended is durable; false: some may be missing. */
  settleRecords(signal: AbortSignal): Promise<boolean>;
  /** The capability of the harness, and the verifier's. */
  signTokens(
    rollout: StoredRollout,
    attemptId: string,
  ): Promise<{ readonly call: string; readonly reward: string }>;
  endpoints(): Omit<HarnessEndpoints, "token">;
  readonly apiUrl: string;
  /** Which of our processes were down at some time since then. */
  crashedSince(ms: number): ReadonlySet<"sidecar" | "backend">;
  readonly inherited: Readonly<Record<string, string | undefined>>;
  readonly now: () => number;
  /** What the maker of a rollout wants of its attempts beyond the experiment. */
  readonly custom?: AttemptCustom;
  /** Counted for the progress display. */
  onCalls?(calls: readonly Call[]): void;
}

/** Variables and limits that come with a rollout, not with the experiment. */
export interface AttemptCustom {
  /** Added to the harness's environment; wins over the experiment's. */
  environment(rollout: StoredRollout, attemptId: string, token: string): Record<string, string>;
  timeoutMs(rollout: StoredRollout): number;
  /** What the harness's token allows, `call` included. */
  readonly scopes: readonly CapabilityScope[];
}

export interface AttemptResult extends AttemptEnd, AttemptEndDetails {}

/** Abort reason of an attempt's signal. */
export class StopAttempt extends Error {
  readonly stopCause: StopCause;
  constructor(stopCause: StopCause) {
    super(stopCause);
    this.stopCause = stopCause;
  }
}

/**
 * One try at a rollout: workspace, harness process, records, grading. Never rejects for something
 * that the attempt or the grader did: that is in the result.
 */
export async function runAttempt(
  context: AttemptContext,
  rollout: StoredRollout,
  attemptId: string,
  directory: string,
  signal: AbortSignal,
  onStarted: (identity: ProcessIdentity) => void,
): Promise<AttemptResult> {
  await context.whenReady();
  const startedAtMs = context.now();
  const workspace = join(directory, "workspace");
  const outputFile = join(directory, "output.log");
  const tokens = await context.signTokens(rollout, attemptId);
  const end = await runHarness(context, rollout, attemptId, {
    workspace,
    outputFile,
    token: tokens.call,
    signal,
    onStarted,
  });
  const isSettled = await context.settleRecords(signal);
  const calls = await context.calls.callsOfAttempt(rollout.rolloutId, attemptId);
  context.onCalls?.(calls);
  const stopCause = signal.reason instanceof StopAttempt ? signal.reason.stopCause : undefined;
  const decided = decideAttemptEnd({
    end,
    ...(stopCause !== undefined && { stopCause }),
    callCount: calls.length,
    isSettled,
    crashed: context.crashedSince(startedAtMs),
  });
  const result = await gradeAttempt(context, rollout, attemptId, decided, signal, {
    end,
    workspace,
    outputFile,
    token: tokens.reward,
  });
  await tidy(context.experiment.retention.workspaces, result, workspace);
  return result;
}

async function runHarness(
  context: AttemptContext,
  rollout: StoredRollout,
  attemptId: string,
  places: {
    readonly workspace: string;
    readonly outputFile: string;
    readonly token: string;
    readonly signal: AbortSignal;
    readonly onStarted: (identity: ProcessIdentity) => void;
  },
): Promise<ProcessEnd> {
  const { harness, tasks } = context.experiment;
  const { rolloutId } = rollout;
  const whole: Task = { taskId: rollout.taskId, fields: rollout.input };
  const task = visibleTask(whole, tasks.verifierOnly);
  await mkdir(places.workspace, { recursive: true });
  const environment = buildHarnessEnvironment(
    harness,
    task,
    { runId: context.runId, rolloutId, attemptId },
    { ...context.endpoints(), token: places.token },
    context.inherited,
  );
  if (harness.taskFile !== undefined) {
    const path = join(places.workspace, harness.taskFile);
    await writeFile(path, `${JSON.stringify(task.fields, null, 2)}\n`);
    environment["OUTRIGGER_TASK_FILE"] = path;
  }
  Object.assign(environment, context.custom?.environment(rollout, attemptId, places.token));
  return runProcess(
    {
      ...harness,
      timeoutMs: context.custom?.timeoutMs(rollout) ?? harness.timeoutMs,
      cwd: harness.cwd ?? places.workspace,
      environment,
      marks: attemptMarks,
      outputFile: places.outputFile,
    },
    places.signal,
    places.onStarted,
  );
}

async function gradeAttempt(
  context: AttemptContext,
  rollout: StoredRollout,
  attemptId: string,
  decided: AttemptEnd,
  signal: AbortSignal,
  facts: {
    readonly end: ProcessEnd;
    readonly workspace: string;
    readonly outputFile: string;
    readonly token: string;
  },
): Promise<AttemptResult> {
  const { experiment, verifier } = context;
  if (experiment.failurePolicy[decided.reason].reward.kind !== "graded") return decided;
  let grade: Grade;
  if (verifier === undefined) {
    const events = await context.calls.eventsOfAttempt(rollout.rolloutId, attemptId);
    grade = gradeFromEvents(
      events,
      "fromEvents" in experiment.reward ? experiment.reward.fromEvents : "last",
    );
  } else {
    const request = {
      rolloutId: rollout.rolloutId,
      attemptId,
      task: rollout.input,
      endReason: decided.reason,
      exitCode: facts.end.kind === "exited" ? facts.end.exitCode : null,
      workspace: facts.workspace,
      outputFile: facts.outputFile,
      api: { url: context.apiUrl, token: facts.token },
    };
    // A cut attempt is still graded: its own signal has done its work.
    const isCut = decided.detail === "tail-cut";
    grade = await verifier.grade(request, isCut ? new AbortController().signal : signal);
  }
  const info = "info" in grade ? { grade: grade.info } : {};
  switch (grade.kind) {
    case "reward":
      return { ...decided, reward: grade.reward, ...info };
    case "silent":
      return { ...decided, ...info };
    case "failed":
      return { reason: "infra-error", detail: grade.detail, message: grade.message };
  }
}

async function tidy(
  keep: "none" | "failed" | "all",
  result: AttemptResult,
  workspace: string,
): Promise<void> {
  if (keep === "all" || (keep === "failed" && result.reason !== "succeeded")) return;
  await rm(workspace, { recursive: true, force: true });
}
