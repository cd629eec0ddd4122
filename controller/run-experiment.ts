import { appendFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { OutriggerError } from "../core/outrigger-error.ts";
import { encodeScheduleEvent } from "../core/scheduling/schedule-event.ts";
import type { BackendDescription, TrainerBackend } from "../core/trainer-backend.ts";
import type { Logger } from "../runtime/log.ts";
import { sleep } from "../runtime/sleep.ts";
import type { Experiment } from "./experiment/load-experiment.ts";
import type { Task } from "./experiment/read-tasks.ts";
import { type Grader, openVerifier } from "./grading/grader.ts";
import { type Controller, openController, wideCapability } from "./open-controller.ts";
import type { RunResult } from "./report/build-result.ts";
import { collectResult } from "./report/collect-result.ts";
import { RolloutDispatcher } from "./rollouts/rollout-dispatcher.ts";
import { type AttemptContext, runAttempt } from "./rollouts/run-attempt.ts";
import { type RunDirectory, writeAtomically } from "./run-directory.ts";
import { plainVariables, runIdVariable } from "./runners/harness-environment.ts";
import { killLeftovers } from "./runners/kill-leftovers.ts";
import type { ProcessIdentity } from "./runners/process-identity.ts";
import { createChangeSignal } from "./scheduler/change-signal.ts";
import { samplingOverrides } from "./scheduler/experiment-settings.ts";
import { retryingBackend } from "./scheduler/retrying-backend.ts";
import type { RunObserver } from "./scheduler/run-observer.ts";
import { TrainingRun } from "./scheduler/training-run.ts";

/** The processes beside the controller; who starts them knows what they are. */
export interface RunProcesses {
  readonly backend: TrainerBackend;
  readonly sidecarUrl: string;
  /** Resolves when the backend's process answers (again). */
  backendReady(): Promise<void>;
  sidecarReady(): Promise<void>;
  /** Which of them were not up at some time since then, ms since the epoch. */
  crashedSince(ms: number): ReadonlySet<"sidecar" | "backend">;
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
  noteProcess(name: string, identity: ProcessIdentity): void;
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
const settleLimitMs = 60_000;
/** How long running attempts may go on after the first Ctrl-C. */
const drainMs = 20_000;
const engineCheckMs = 60_000;
const checkPollMs = 20;

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
  let verifier: Grader | undefined;
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
    verifier = openExperimentVerifier(options);
    const attempts = attemptContext(options, controller, started, verifier, (tokens) =>
      late.training?.callsArrived(tokens),
    );
    const dispatcher = new RolloutDispatcher({
      store: controller.rollouts,
      policy: experiment.failurePolicy,
      concurrency: experiment.harness.concurrency,
      owner: runId,
      leaseMs,
      directory: join(directory.path, "rollouts"),
      log,
      now,
      runAttempt: (...attempt) => runAttempt(attempts, ...attempt),
      onChanged: (rolloutId) => void tellTraining(rolloutId),
      onFatal: (error) => late.training?.fail(error),
    });
    late.dispatcher = dispatcher;
    const scheduleLog = join(directory.path, "schedule.jsonl");
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
        await verifier?.close();
        await backend.close();
        await started.close();
        await controller.close();
      },
    };
  } catch (error) {
    await verifier?.close();
    await processes?.backend.close();
    await processes?.close();
    await controller.close();
    throw error;
  }
}

async function train(session: Session, options: RunExperimentOptions): Promise<void> {
  const { training } = session;
  await training.prepare();
  await checkEngine(session, options);
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

function checkBackend(experiment: Experiment, description: BackendDescription): void {
  const { loss, correction, klCoefficient } = experiment.algorithm;
  const problems = [
    ...(description.losses.includes(loss.kind) ? [] : [`algorithm.loss.kind ${loss.kind}`]),
    ...(description.corrections.includes(correction.kind)
      ? []
      : [`algorithm.correction.kind ${correction.kind}`]),
    ...(klCoefficient > 0 && !description.supportsKl ? ["algorithm.klCoefficient above 0"] : []),
  ];
  if (problems.length === 0) return;
  throw new OutriggerError(
    "backend-cannot",
    `the ${description.kind} backend does not support ${problems.join(", ")}`,
    {
      origin: "user",
      hint: `It knows the losses ${description.losses.join(", ")} and the corrections ${description.corrections.join(", ")}.`,
    },
  );
}

/** Refuses to train when the engine, asked through the sidecar, gives no token ids or logprobs. */
async function checkEngine(
  { controller, backend }: Session,
  { observer, signal, now }: RunExperimentOptions,
): Promise<void> {
  const deadline = now() + engineCheckMs;
  await controller.ingest.waitForSidecars(1, signal);
  const urls = new Set((await backend.policyEndpoints(signal)).map((endpoint) => endpoint.url));
  for (;;) {
    // A sidecar that has just started may still name the engine of an earlier session.
    const engines = controller.ingest
      .sidecars()
      .flatMap((sidecar) => sidecar.engines)
      .filter((engine) => urls.has(engine.url));
    const bad = engines.find((engine) => engine.canaryDone && engine.canaryProblem !== "");
    if (bad !== undefined) {
      throw new OutriggerError(
        "engine-unusable",
        `the engine ${bad.url} cannot be trained with: ${bad.canaryProblem}`,
        {
          origin: "engine",
          hint: "It must return token ids and logprobs (return_token_ids); see docs/experiments.md.",
        },
      );
    }
    if (engines.length > 0 && engines.every((engine) => engine.canaryDone)) return;
    if (now() > deadline) {
      observer.warning("the engine's start-up check gave no answer; incomplete calls are counted");
      return;
    }
    await sleep(checkPollMs, signal);
    if (signal.aborted) throw signal.reason;
  }
}

function openExperimentVerifier({
  experiment,
  environment,
  directory,
}: RunExperimentOptions): Grader | undefined {
  if (!("verifier" in experiment.reward)) return undefined;
  const { verifier } = experiment.reward;
  const plain = Object.fromEntries(
    plainVariables.flatMap((name) => {
      const value = environment[name];
      return value === undefined ? [] : [[name, value]];
    }),
  );
  return openVerifier({
    ...verifier,
    environment: {
      ...plain,
      ...verifier.environment,
      [runIdVariable]: directory.identity.runId,
    },
    cwd: directory.path,
  });
}

function attemptContext(
  options: RunExperimentOptions,
  controller: Controller,
  processes: RunProcesses,
  verifier: Grader | undefined,
  onTokens: (tokens: number) => void,
): AttemptContext {
  const { experiment, directory, now } = options;
  const { harness } = experiment;
  return {
    runId: directory.identity.runId,
    experiment,
    calls: controller.calls,
    verifier,
    whenReady: async () => {
      await processes.backendReady();
      await processes.sidecarReady();
    },
    settleRecords: async (signal) => {
      await processes.sidecarReady();
      return controller.ingest.settle({ timeoutMs: settleLimitMs, signal });
    },
    signTokens: async ({ rolloutId, mode }, attemptId) => {
      const target = {
        rolloutId,
        attemptId,
        mode,
        expiresAtMs: now() + harness.timeoutMs + leaseMs,
      };
      return {
        call: await controller.sign({
          ...target,
          scopes: harness.mayReward ? ["call", "event", "reward"] : ["call"],
        }),
        reward: await controller.sign({
          ...target,
          scopes: ["reward", "event"],
          expiresAtMs: target.expiresAtMs + 3_600_000,
        }),
      };
    },
    endpoints: () => ({ sidecarUrl: processes.sidecarUrl, model: "policy" }),
    apiUrl: controller.apiUrl,
    crashedSince: (ms) => processes.crashedSince(ms),
    inherited: options.environment,
    now,
    onCalls: (calls) =>
      onTokens(calls.reduce((sum, call) => sum + (call.responseIds?.length ?? 0), 0)),
  };
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

interface ChildNotes {
  /** By an earlier session. */
  readonly noted: readonly ProcessIdentity[];
  note(name: string, identity: ProcessIdentity): void;
}

function childNotes(file: string): ChildNotes {
  let noted: ProcessIdentity[] = [];
  try {
    noted = Object.values(
      JSON.parse(readFileSync(file, "utf8")) as Record<string, ProcessIdentity>,
    );
  } catch {
    // A new run.
  }
  const present: Record<string, ProcessIdentity> = {};
  return {
    noted,
    note: (name, identity) => {
      present[name] = identity;
      writeAtomically(file, JSON.stringify(present));
    },
  };
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
