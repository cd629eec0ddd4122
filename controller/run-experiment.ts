import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { OutriggerError } from "../core/outrigger-error.ts";
import { encodeScheduleEvent } from "../core/scheduling/schedule-event.ts";
import type { BackendDescription, TrainerBackend } from "../core/trainer-backend.ts";
import type { Logger } from "../runtime/log.ts";
import { sleep } from "../runtime/sleep.ts";
import { checkBackend, checkEngine } from "./check-engine.ts";
import type { Experiment } from "./experiment/load-experiment.ts";
import type { Task } from "./experiment/read-tasks.ts";
import { type Controller, openController, wideCapability } from "./open-controller.ts";
import type { RunResult } from "./report/build-result.ts";
import { collectResult } from "./report/collect-result.ts";
import {
  type AttemptProcesses,
  type LocalAttempts,
  openLocalAttempts,
} from "./rollouts/open-local-attempts.ts";
import { RolloutDispatcher } from "./rollouts/rollout-dispatcher.ts";
import { type RunDirectory, writeAtomically } from "./run-directory.ts";
import { type ChildNotes, childNotes } from "./runners/child-notes.ts";
import { runIdVariable } from "./runners/harness-environment.ts";
import { killLeftovers } from "./runners/kill-leftovers.ts";
import type { ProcessIdentity } from "./runners/process-identity.ts";
import { createChangeSignal } from "./scheduler/change-signal.ts";
import { samplingOverrides } from "./scheduler/experiment-settings.ts";
import { retryingBackend } from "./scheduler/retrying-backend.ts";
import type { RunObserver } from "./scheduler/run-observer.ts";
import { TrainingRun } from "./scheduler/training-run.ts";

/** The processes beside the controller; who starts them knows what they are. */
export interface RunProcesses extends AttemptProcesses {
  readonly backend: TrainerBackend;
  close(): Promise<void>;
}

export interface ProcessRequest {
  readonly directory: string;
  readonly runId: string;
  readonly seed: number;
  readonly grpcAddress: string;
  /** Capability of scope `sidecar`. */
  readonly sidecarToken: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly noteProcess: (name: string, identity: ProcessIdentity) => void;
  /** A process that cannot be kept running. */
  readonly onGivenUp: (error: OutriggerError) => void;
}

export interface RunExperimentOptions {
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
  /** For the sample views of the report; absent without a tokenizer. */
  readonly openDecoder: () => Promise<((ids: readonly number[]) => string) | undefined>;
}

const leaseMs = 60_000;
/** How long running attempts may go on after the first Ctrl-C. */
const drainMs = 20_000;

/**
 * One session of a run, from wherever the directory says it stands to its end: stores, processes,
 * training, result and report. Everything durable is in the directory, so a session may be killed
 * at any point and another one goes on.
 *
 * @throws OutriggerError what stopped it; `run-stopped` after the signal
 */
export async function runExperiment(options: RunExperimentOptions): Promise<RunResult> {
  const { directory, now } = options;
  const startedAtMs = now();
  const children = childNotes(join(directory.path, "children.json"));
  await killLeftovers(directory.identity.runId, children.noted);
  const session = await openSession(options, children);
  const stopClock = await startClock(session.controller, now);
  let failure: unknown;
  try {
    await train(session, options);
  } catch (error) {
    failure = options.signal.aborted ? stopped(directory.path) : error;
  }
  try {
    await wind(session, failure === undefined ? 0 : drainMs, options);
    await stopClock();
    const result = await collectResult({
      experiment: options.experiment,
      directory: directory.path,
      runId: directory.identity.runId,
      controller: session.controller,
      compute: session.description.compute,
      policyVersion: session.training.version,
      checkpoint: failure === undefined ? await checkpoint(session) : null,
      failure,
      openDecoder: options.openDecoder,
    });
    options.log.info({ seconds: (now() - startedAtMs) / 1000 }, "session ended");
    if (failure instanceof Error) throw failure;
    return result;
  } finally {
    await session.close();
  }
}

interface Session {
  readonly controller: Controller;
  readonly backend: TrainerBackend;
  readonly description: BackendDescription;
  readonly dispatcher: RolloutDispatcher;
  readonly training: TrainingRun;
  close(): Promise<void>;
}

async function openSession(options: RunExperimentOptions, children: ChildNotes): Promise<Session> {
  const { experiment, directory, log, now } = options;
  const { runId } = directory.identity;
  const changed = createChangeSignal();
  const late: { training?: TrainingRun; dispatcher?: RolloutDispatcher } = {};
  const controller = await openController({
    directory: directory.path,
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
    hooks: {
      onQueued: () => late.dispatcher?.wake(),
      onChanged: (rolloutId) => void tellTraining(rolloutId),
      stopAttempt: async (rolloutId) => late.dispatcher?.stop(rolloutId, "cancelled"),
      status: async () => ({
        runId,
        name: experiment.name,
        steps: { done: late.training?.stepsDone ?? 0, wanted: experiment.schedule.steps },
        policyVersion: late.training?.version ?? 0,
        rollouts: await controller.rollouts.countByState(),
      }),
    },
  });
  const tellTraining = async (rolloutId: string): Promise<void> => {
    try {
      const rollout = await controller.rollouts.get(rolloutId);
      if (rollout !== undefined) late.training?.rolloutChanged(rollout);
    } catch (error) {
      late.training?.fail(error);
    }
  };
  let processes: RunProcesses | undefined;
  let attempts: LocalAttempts | undefined;
  try {
    await requeueLost(controller, experiment, now());
    writeAtomically(
      join(directory.path, "admin-token"),
      await controller.sign(wideCapability("admin", now())),
      0o600,
    );
    writeAtomically(
      join(directory.path, "controller.json"),
      JSON.stringify({ apiUrl: controller.apiUrl, grpcAddress: controller.grpcAddress }),
    );
    processes = await options.startProcesses({
      directory: directory.path,
      runId,
      seed: directory.identity.seed,
      grpcAddress: controller.grpcAddress,
      sidecarToken: await controller.sign(wideCapability("sidecar", now())),
      environment: { [runIdVariable]: runId },
      noteProcess: children.note,
      onGivenUp: (error) => late.training?.fail(error),
    });
    const started = processes;
    const backend = retryingBackend(started.backend, {
      ready: () => started.backendReady(),
      signal: options.signal,
      log,
    });
    const description = await backend.describe(options.signal);
    options.onBackend(description);
    checkBackend(experiment, description);
    attempts = openLocalAttempts({
      runId,
      experiment,
      controller,
      processes,
      directory: directory.path,
      environment: options.environment,
      now,
      onTokens: (tokens) => late.training?.callsArrived(tokens),
    });
    const opened = { attempts, processes };
    const dispatcher = new RolloutDispatcher({
      store: controller.rollouts,
      policy: experiment.failurePolicy,
      concurrency: experiment.harness.concurrency,
      owner: runId,
      leaseMs,
      directory: join(directory.path, "rollouts"),
      log,
      now,
      runAttempt: attempts.run,
      onChanged: (rolloutId) => void tellTraining(rolloutId),
      onFatal: (error) => late.training?.fail(error),
    });
    late.dispatcher = dispatcher;
    const scheduleLog = join(directory.path, "schedule.jsonl");
    const captureLog = join(directory.path, "capture.jsonl");
    const training = new TrainingRun({
      runId,
      experiment,
      trainTasks: options.tasks.train,
      heldOutTasks: options.tasks.heldOut,
      rollouts: controller.rollouts,
      steps: controller.steps,
      calls: controller.calls,
      dispatcher,
      backend,
      maxSequenceLength: description.maxSequenceLength,
      ingest: controller.ingest,
      changed,
      observer: options.observer,
      log,
      onScheduleEvent: (event) => appendFileSync(scheduleLog, `${encodeScheduleEvent(event)}\n`),
      onCapture: (step, { rollouts }) =>
        appendFileSync(
          captureLog,
          rollouts.map((rollout) => `${JSON.stringify({ step, ...rollout })}\n`).join(""),
        ),
      runStartedAtMs: directory.identity.createdAtMs,
      now,
    });
    late.training = training;
    return {
      controller,
      backend,
      description,
      dispatcher,
      training,
      close: async () => {
        await opened.attempts.close();
        await backend.close();
        await opened.processes.close();
        await controller.close();
      },
    };
  } catch (error) {
    await attempts?.close();
    await processes?.backend.close();
    await processes?.close();
    await controller.close();
    throw error;
  }
}

async function train(session: Session, options: RunExperimentOptions): Promise<void> {
  const { training } = session;
  await training.prepare();
  await checkEngine(session.controller.ingest, session.backend, options);
  await training.run(options.signal);
}

/** Attempts that an earlier session left open are lost; the failure policy says what follows. */
async function requeueLost(
  controller: Controller,
  experiment: Experiment,
  nowMs: number,
): Promise<void> {
  for (const attempt of await controller.rollouts.openAttempts()) {
    await controller.rollouts.end(
      attempt.rolloutId,
      { type: "lease-expired", attemptId: attempt.attemptId },
      { detail: "controller-died", message: "the controller died while the attempt ran" },
      experiment.failurePolicy,
      nowMs,
    );
  }
}

/** Stops starting things; lets what runs end for so long; then ends it. */
async function wind(
  session: Session,
  graceMs: number,
  { experiment }: RunExperimentOptions,
): Promise<void> {
  const { dispatcher, training, controller } = session;
  const limit = new AbortController();
  const isDrained = dispatcher.close().then(() => true);
  controller.ingest.resume();
  const grace = Math.min(graceMs, experiment.harness.timeoutMs);
  const inTime = await Promise.race([isDrained, sleep(grace, limit.signal).then(() => false)]);
  if (!inTime) await dispatcher.destroy();
  limit.abort();
  await training.settle();
}

async function checkpoint({ backend, training }: Session): Promise<string> {
  const { location } = await backend.checkpoint(`step-${training.stepsDone}`);
  return location;
}

function stopped(directory: string): OutriggerError {
  return new OutriggerError("run-stopped", `stopped; everything so far is in ${directory}`, {
    origin: "user",
    hint: `Go on with: outrigger run EXPERIMENT --resume --out ${directory}`,
  });
}

/** Adds this session to the run's wall time, also when it is killed (to the last tick). */
async function startClock(controller: Controller, now: () => number): Promise<() => Promise<void>> {
  const before = (await controller.steps.fact<number>("wall-ms")) ?? 0;
  const startedAtMs = now();
  const save = (): Promise<void> =>
    controller.steps.setFact("wall-ms", before + now() - startedAtMs);
  const timer = setInterval(() => void save().catch(() => undefined), 1_000);
  return async () => {
    clearInterval(timer);
    await save();
  };
}
