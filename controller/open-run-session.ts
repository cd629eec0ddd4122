import { appendFileSync } from "node:fs";
import { join } from "node:path";
import type { RunCapture } from "../core/capture-report.ts";
import { OutriggerError } from "../core/outrigger-error.ts";
import type { BackendDescription, TrainerBackend } from "../core/trainer-backend.ts";
import type { Logger } from "../runtime/log.ts";
import { checkBackend } from "./check-engine.ts";
import { createCloseStack } from "./close-stack.ts";
import type { Experiment } from "./experiment/load-experiment.ts";
import type { Task } from "./experiment/read-tasks.ts";
import { watchVerifier } from "./grading/watch-verifier.ts";
import {
  type Controller,
  type ControllerHooks,
  openController,
  wideCapability,
} from "./open-controller.ts";
import { endAttemptsOnExit } from "./rollouts/end-attempts-on-exit.ts";
import { type LocalAttempts, openLocalAttempts } from "./rollouts/open-local-attempts.ts";
import { requeueLost } from "./rollouts/requeue-lost.ts";
import { RolloutDispatcher } from "./rollouts/rollout-dispatcher.ts";
import { type RunDirectory, writeAtomically } from "./run-directory.ts";
import type { ProcessRequest, RunProcesses } from "./run-processes.ts";
import { runIdVariable } from "./runners/harness-environment.ts";
import { createChangeSignal } from "./scheduler/change-signal.ts";
import { samplingOverrides } from "./scheduler/experiment-settings.ts";
import { retryingBackend } from "./scheduler/retrying-backend.ts";
import type { RunObserver } from "./scheduler/run-observer.ts";
import { openScheduleLog, type ScheduleLog } from "./scheduler/schedule-log.ts";
import { TrainingRun } from "./scheduler/training-run.ts";

export interface RunSessionOptions {
  readonly experiment: Experiment;
  readonly tasks: { readonly train: readonly Task[]; readonly heldOut: readonly Task[] };
  readonly directory: RunDirectory;
  readonly observer: RunObserver;
  readonly log: Logger;
  /** Aborted to drain and stop. */
  readonly signal: AbortSignal;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly now: () => number;
  readonly startProcesses: (request: ProcessRequest) => Promise<RunProcesses>;
  readonly onBackend: (description: BackendDescription) => void;
}

/** What is open while a session of a run works. */
export interface RunSession {
  readonly controller: Controller;
  readonly backend: TrainerBackend;
  readonly description: BackendDescription;
  readonly dispatcher: RolloutDispatcher;
  readonly training: TrainingRun;
  readonly scheduleLog: ScheduleLog;
  close(): Promise<void>;
}

/** Parts that others speak to before they are there. */
interface Late {
  training?: TrainingRun;
  dispatcher?: RolloutDispatcher;
}

const leaseMs = 60_000;

/** Stores, processes and the training loop over them; what is open is closed when one cannot be had. */
export async function openRunSession(
  options: RunSessionOptions,
  noteProcess: ProcessRequest["noteProcess"],
): Promise<RunSession> {
  const { experiment, directory, log } = options;
  const { runId } = directory.identity;
  const late: Late = {};
  const closing = createCloseStack();
  try {
    const controller = await openRunController(options, late);
    closing.add(() => controller.close());
    const processes = await startBeside(options, controller, noteProcess, late);
    closing.add(() => processes.close());
    closing.add(() => processes.backend.close());
    const backend = retryingBackend(processes.backend, {
      ready: () => processes.backendReady(),
      signal: options.signal,
      log,
    });
    const description = await backend.describe(options.signal);
    options.onBackend(description);
    checkBackend(experiment, description);
    const attempts = openLocalAttempts({
      runId,
      experiment,
      controller,
      processes,
      directory: directory.path,
      environment: options.environment,
      now: options.now,
      onTokens: (tokens) => late.training?.callsArrived(tokens),
    });
    closing.add(() => attempts.close());
    const dispatcher = openDispatcher(options, controller, attempts, late);
    const release = endAttemptsOnExit(dispatcher);
    closing.add(async () => release());
    const scheduleLog = await openScheduleLog({
      file: join(directory.path, "schedule.jsonl"),
      runStartedAtMs: directory.identity.createdAtMs,
      stores: controller,
      log,
    });
    const { maxSequenceLength } = description;
    const parts = { controller, dispatcher, backend, maxSequenceLength, scheduleLog };
    const training = openTraining(options, parts);
    late.training = training;
    const close = (): Promise<void> => closing.close();
    return { controller, backend, description, dispatcher, training, scheduleLog, close };
  } catch (error) {
    await closing.close().catch((also: unknown) => log.warn({ err: also }, "closing failed"));
    throw error;
  }
}

async function openRunController(options: RunSessionOptions, late: Late): Promise<Controller> {
  const { experiment, directory, log, now } = options;
  const hooks: ControllerHooks = {
    onQueued: () => late.dispatcher?.wake(),
    onChanged: (rolloutId) => void tellTraining(controller, late, rolloutId),
    stopAttempt: async (rolloutId) => late.dispatcher?.stop(rolloutId, "cancelled"),
    policyControl: {
      list: async () => ({
        version: late.training?.version ?? 0,
        ...(await (late.training?.policyHistory() ?? { checkpoints: [], rollbacks: [] })),
      }),
      rollBack: (checkpoint) => {
        if (late.training !== undefined) return late.training.rollBack(checkpoint);
        const message = "the run is still being started";
        throw new OutriggerError("policy-busy", message, { origin: "user", retryable: true });
      },
    },
    status: async () => ({
      runId: directory.identity.runId,
      name: experiment.name,
      steps: { done: late.training?.stepsDone ?? 0, wanted: experiment.schedule.steps },
      policyVersion: late.training?.version ?? 0,
      rollouts: await controller.rollouts.countByState(),
    }),
  };
  const controller: Controller = await openController({
    directory: directory.path,
    tokenKey: "session",
    ownRunner: directory.identity.runId,
    host: "127.0.0.1",
    grpcPort: 0,
    httpPort: 0,
    capture: {
      captureText: experiment.capture.text,
      redactionPatterns: experiment.capture.redact,
      trainOverrides: samplingOverrides(experiment.sampling.train),
      evalOverrides: samplingOverrides(experiment.sampling.eval),
      requireCanary: true,
      deduplicateRetries: true,
    },
    failurePolicy: experiment.failurePolicy,
    log,
    now,
    hooks,
  });
  return controller;
}

async function tellTraining(controller: Controller, late: Late, rolloutId: string): Promise<void> {
  try {
    const rollout = await controller.rollouts.get(rolloutId);
    if (rollout !== undefined) late.training?.rolloutChanged(rollout);
  } catch (error) {
    late.training?.fail(error);
  }
}

/** What an earlier session left open is put right before anything is started. */
async function startBeside(
  { experiment, directory, startProcesses, now }: RunSessionOptions,
  controller: Controller,
  noteProcess: ProcessRequest["noteProcess"],
  late: Late,
): Promise<RunProcesses> {
  const { path, identity } = directory;
  const { runId, seed } = identity;
  const { apiUrl, grpcAddress } = controller;
  const policy = experiment.failurePolicy;
  await requeueLost(controller.rollouts, { owner: runId, policy, nowMs: now() });
  const adminToken = await controller.sign(wideCapability("admin", now()));
  writeAtomically(join(path, "admin-token"), adminToken, 0o600);
  writeAtomically(join(path, "controller.json"), JSON.stringify({ apiUrl, grpcAddress }));
  return startProcesses({
    directory: path,
    runId,
    seed,
    grpcAddress,
    sidecarToken: await controller.sign(wideCapability("sidecar", now())),
    environment: { [runIdVariable]: runId },
    noteProcess,
    onGivenUp: (error) => late.training?.fail(error),
  });
}

function openDispatcher(
  { experiment, directory, observer, log, now }: RunSessionOptions,
  controller: Controller,
  attempts: LocalAttempts,
  late: Late,
): RolloutDispatcher {
  const dispatcher = new RolloutDispatcher({
    store: controller.rollouts,
    policy: experiment.failurePolicy,
    concurrency: experiment.harness.concurrency,
    owner: directory.identity.runId,
    leaseMs,
    directory: join(directory.path, "rollouts"),
    log,
    now,
    runAttempt: watchVerifier(attempts.run, { warn: (text) => observer.warning(text), log }),
    onChanged: (rolloutId) => void tellTraining(controller, late, rolloutId),
    onFatal: (error) => late.training?.fail(error),
  });
  late.dispatcher = dispatcher;
  return dispatcher;
}

function openTraining(
  options: RunSessionOptions,
  parts: {
    readonly controller: Controller;
    readonly dispatcher: RolloutDispatcher;
    readonly backend: TrainerBackend;
    readonly maxSequenceLength: number;
    readonly scheduleLog: ScheduleLog;
  },
): TrainingRun {
  const { experiment, tasks, directory, observer, log, now } = options;
  const { controller, scheduleLog, ...rest } = parts;
  const captureLog = join(directory.path, "capture.jsonl");
  return new TrainingRun({
    runId: directory.identity.runId,
    experiment,
    trainTasks: tasks.train,
    heldOutTasks: tasks.heldOut,
    rollouts: controller.rollouts,
    steps: controller.steps,
    calls: controller.calls,
    ingest: controller.ingest,
    ...rest,
    changed: createChangeSignal(),
    observer,
    log,
    onScheduleEvent: (event) => scheduleLog.append(event),
    onCapture: (step, capture) => appendFileSync(captureLog, captureLines(step, capture)),
    runStartedAtMs: directory.identity.createdAtMs,
    now,
  });
}

function captureLines(step: number, { rollouts }: RunCapture): string {
  return rollouts.map((rollout) => `${JSON.stringify({ step, ...rollout })}\n`).join("");
}
