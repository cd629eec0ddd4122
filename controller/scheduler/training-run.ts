import type { RunCapture } from "../../core/capture-report.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import {
  decideSchedule,
  type ScheduleAction,
  type ScheduleSettings,
} from "../../core/scheduling/decide-schedule.ts";
import type { ScheduleEvent } from "../../core/scheduling/schedule-event.ts";
import type {
  GateState,
  ScheduleState,
  TrainerState,
} from "../../core/scheduling/schedule-state.ts";
import type { TrainerBackend, UpdateResult } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";
import { taskOrder } from "../experiment/task-order.ts";
import type { IngestServer } from "../ingest/ingest-server.ts";
import type { RolloutDispatcher } from "../rollouts/rollout-dispatcher.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore, StoredRollout } from "../store/rollout-store.ts";
import type { StepStore, StoredStep } from "../store/step-store.ts";
import { createActiveGroups, loadActiveGroups } from "./active-groups.ts";
import { buildStepBatch, type StepBatch } from "./build-step-batch.ts";
import type { ChangeSignal } from "./change-signal.ts";
import { checkLimits } from "./check-limits.ts";
import { evaluate } from "./evaluate.ts";
import { scheduleSettingsOf, trainingSettingsOf, updateSettingsOf } from "./experiment-settings.ts";
import type { EvaluationResult, RunObserver } from "./run-observer.ts";
import { buildStepMetrics, type StepMetrics } from "./step-metrics.ts";

export interface TrainingRunOptions {
  readonly runId: string;
  readonly experiment: Experiment;
  readonly trainTasks: readonly Task[];
  readonly heldOutTasks: readonly Task[];
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly calls: CallStore;
  readonly dispatcher: RolloutDispatcher;
  readonly backend: TrainerBackend;
  readonly maxSequenceLength: number;
  readonly ingest: Pick<IngestServer, "pause" | "resume" | "publishPolicy">;
  readonly changed: ChangeSignal;
  readonly observer: RunObserver;
  readonly log: Logger;
  /** A line of the schedule's log, in the simulator's format. */
  readonly onScheduleEvent: (event: ScheduleEvent) => void;
  /** What was captured of a step's rollouts; told again when an interrupted step is finished. */
  readonly onCapture: (step: number, capture: RunCapture) => void;
  /** When the run began: times of the schedule's log count from here, over all its sessions. */
  readonly runStartedAtMs: number;
  readonly now: () => number;
}

type DistributedOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

/** Tasks come round again for as long as steps are wanted. */
const endlessGroupCount = Number.MAX_SAFE_INTEGER;

/**
 * The loop that trains. It consumes: rollouts that became terminal (`rolloutChanged`), the end of a
 * drain, the end of an update. It produces: groups in the store, gate commands, updates, published
 * policies. After each change it asks `decideSchedule` what to do and does it; all that must
 * outlive a kill is written before it is acted on.
 */
export class TrainingRun {
  readonly #options: TrainingRunOptions;
  readonly #settings: ScheduleSettings;
  readonly #taskOf: (index: number) => number;
  readonly #startedAtMs: number;
  #groups = createActiveGroups();
  #gate: GateState = "open";
  #pauseUnderWay: symbol | undefined;
  #trainer: TrainerState = { state: "idle" };
  #update: { readonly step: StoredStep; batch: StepBatch; result?: UpdateResult } | undefined;
  #samplingSinceMs: number;
  #version = 0;
  #stepsDone = 0;
  #admitted = 0;
  #sampledTokens = 0;
  #wake: NodeJS.Timeout | undefined;
  #failure: unknown;

  constructor(options: TrainingRunOptions) {
    this.#options = options;
    this.#settings = scheduleSettingsOf(options.experiment);
    this.#taskOf = taskOrder(options.experiment.seed, options.trainTasks.length);
    this.#startedAtMs = options.runStartedAtMs;
    this.#samplingSinceMs = options.now();
  }

  get version(): number {
    return this.#version;
  }

  get stepsDone(): number {
    return this.#stepsDone;
  }

  /** Told by whoever changes rollouts. */
  rolloutChanged(rollout: StoredRollout): void {
    const { rolloutId, terminalSeq, reward } = rollout;
    const isOver = terminalSeq !== undefined;
    if (isOver && this.#groups.rolloutEnded(rolloutId, reward, this.#options.now())) {
      this.#emit({ type: "rollout-end", rolloutId });
    }
    this.#showProgress();
    this.#options.changed.notify();
  }

  callsArrived(tokens: number): void {
    this.#sampledTokens += tokens;
  }

  /** Something outside the loop failed for good. */
  fail(error: unknown): void {
    this.#failure ??= error;
    this.#options.changed.notify();
  }

  /** Reads where the run stands and tells the sidecars where the policy is. */
  async prepare(): Promise<void> {
    await this.#load();
    await this.#serve();
  }

  /**
   * Trains until all steps are done. When the signal aborts it starts nothing more, finishes an
   * update that is under way, and rejects with the signal's reason.
   */
  async run(signal: AbortSignal): Promise<void> {
    const { experiment } = this.#options;
    const { before, after } = experiment.evaluation;
    try {
      await this.#finishInterruptedStep(signal);
      // An earlier session may have died with the gate shut; the sidecars' gates are open again.
      if (this.#admitted > 0) this.#emit({ type: "resume" });
      if (this.#stepsDone === 0 && before) await this.#evaluate(0, signal);
      await this.#loop(signal);
      await this.#evaluateIfDue(signal);
      if (after) await this.#evaluate(this.#stepsDone, signal);
    } finally {
      clearTimeout(this.#wake);
    }
  }

  /** When the run is being stopped: an update under way is finished and noted. */
  async settle(): Promise<void> {
    const { changed } = this.#options;
    const never = new AbortController().signal;
    while (this.#trainer.state === "stepping" && this.#failure === undefined) {
      const next = changed.next();
      if (this.#trainer.state === "stepping") await next(never);
    }
    if (this.#trainer.state === "stepped" && this.#failure === undefined) await this.#publish();
  }

  async #load(): Promise<void> {
    const { steps, backend, now } = this.#options;
    const known = await steps.steps();
    this.#stepsDone = known.filter((step) => step.state === "published").length;
    this.#admitted = await steps.admittedCount();
    this.#groups = await loadActiveGroups(this.#options, now());
    const endpoints = await backend.policyEndpoints();
    this.#version = endpoints[0]?.version ?? 0;
    checkVersion(this.#version, known);
  }

  async #finishInterruptedStep(signal: AbortSignal): Promise<void> {
    const step = (await this.#options.steps.steps()).at(-1);
    if (step?.state !== "updating") return;
    this.#options.log.info({ step: step.stepIndex + 1 }, "an update was interrupted; finishing it");
    // Again, for it may have died before it was logged.
    this.#emit({ type: "train-start", version: step.fromVersion, groups: [...step.groupIds] });
    await this.#startUpdate(step);
    const { changed } = this.#options;
    while (this.#trainer.state === "stepping") {
      const next = changed.next();
      this.#throwIfFailed();
      await next(signal);
    }
    this.#throwIfFailed();
    await this.#publish();
  }

  async #loop(signal: AbortSignal): Promise<void> {
    const { changed, experiment, dispatcher } = this.#options;
    dispatcher.wake();
    while (this.#stepsDone < experiment.schedule.steps) {
      const next = changed.next();
      this.#throwIfFailed();
      if (signal.aborted) throw signal.reason;
      const actions = decideSchedule(this.#state(), this.#settings);
      for (const action of actions) await this.#perform(action, signal);
      const isWaiting = actions.every((action) => action.type === "wake");
      if (isWaiting) await next(signal);
    }
  }

  #state(): ScheduleState {
    const { experiment, now } = this.#options;
    return {
      nowMs: now() - this.#startedAtMs,
      version: this.#version,
      stepsLeft: experiment.schedule.steps - this.#stepsDone,
      waitingGroupCount: endlessGroupCount,
      groups: this.#groups.toSchedule(this.#startedAtMs),
      gate: this.#gate,
      trainer: this.#trainer,
    };
  }

  async #perform(action: ScheduleAction, signal: AbortSignal): Promise<void> {
    switch (action.type) {
      case "admit":
        for (let i = 0; i < action.groupCount; i += 1) await this.#admit();
        this.#options.dispatcher.wake();
        return;
      case "pause":
        this.#pause(signal);
        return;
      case "resume":
        this.#options.ingest.resume();
        this.#gate = "open";
        this.#emit({ type: "resume" });
        return;
      case "start-update":
        await this.#beginUpdate(action.groupIds);
        return;
      case "publish":
        await this.#publish();
        await this.#evaluateIfDue(signal);
        return;
      case "drop":
        await this.#drop(action.groupId);
        return;
      case "cut":
        await this.#cut(action.groupId);
        return;
      case "wake":
        clearTimeout(this.#wake);
        this.#wake = setTimeout(
          () => this.#options.changed.notify(),
          Math.max(0, action.atMs + this.#startedAtMs - this.#options.now()),
        );
        return;
    }
  }

  async #admit(): Promise<void> {
    const { experiment, steps, trainTasks, now } = this.#options;
    const groupIndex = this.#admitted;
    const groupId = `g${groupIndex}`;
    const task = trainTasks[this.#taskOf(groupIndex)] as Task;
    const rolloutIds = Array.from(
      { length: experiment.schedule.groupSize },
      (_, i) => `${groupId}-${i}`,
    );
    const admittedVersion = this.#version;
    await steps.admitGroup(
      { groupId, groupIndex, taskId: task.taskId, admittedVersion },
      rolloutIds.map((rolloutId) => ({
        rolloutId,
        groupId,
        mode: "train",
        purpose: "train",
        taskId: task.taskId,
        input: task.fields,
      })),
      now(),
    );
    this.#admitted += 1;
    this.#groups.add({
      groupId,
      admittedVersion,
      rolloutIds,
      unfinished: new Set(rolloutIds),
      lastProgressAtMs: now(),
    });
    this.#emit({ type: "admit", groupId });
    this.#showProgress();
  }

  #pause(signal: AbortSignal): void {
    const { ingest, experiment, observer } = this.#options;
    const { holdLimitMs, drainLimitMs } = experiment.schedule;
    const pause = Symbol("pause");
    this.#pauseUnderWay = pause;
    this.#gate = "draining";
    this.#emit({ type: "pause" });
    ingest
      .pause({
        reason: "weight-update",
        holdLimitMs,
        drainLimitMs,
        timeoutMs: drainLimitMs * 2,
        signal,
      })
      .then(({ drained, sidecars }) => {
        // With a device of its own the trainer publishes and resumes without waiting for the drain.
        if (this.#pauseUnderWay !== pause || this.#gate !== "draining") return;
        if (!drained) {
          const late = sidecars.filter((s) => s.state !== "drained").map((s) => s.sidecarId);
          observer.warning(`the update starts though not drained: ${late.join(", ")}`);
        }
        this.#gate = "drained";
        this.#emit({ type: "drained" });
        this.#options.changed.notify();
      })
      .catch((error: unknown) => {
        if (!signal.aborted) this.fail(error);
      });
  }

  async #beginUpdate(groupIds: readonly string[]): Promise<void> {
    const { steps, runId, now } = this.#options;
    const stepIndex = this.#stepsDone;
    const step = {
      stepIndex,
      updateId: `${runId}/step-${stepIndex + 1}`,
      fromVersion: this.#version,
      groupIds,
    };
    await steps.beginStep(step, now());
    for (const groupId of groupIds) this.#groups.remove(groupId);
    this.#emit({ type: "train-start", version: this.#version, groups: [...groupIds] });
    await this.#startUpdate({ ...step, state: "updating", startedAtMs: now() });
  }

  /** The same id every time: a backend that had applied it before it died says so again. */
  async #startUpdate(step: StoredStep): Promise<void> {
    const { backend, experiment, observer, maxSequenceLength } = this.#options;
    const { maxRowTokens, overLength, includeSideCalls } = experiment.algorithm;
    const batch = await buildStepBatch(this.#options, step.groupIds, {
      training: trainingSettingsOf(experiment),
      assembly: {
        includeSideCalls,
        overLength,
        maxRowTokens: Math.min(maxRowTokens ?? maxSequenceLength, maxSequenceLength),
      },
    });
    this.#trainer = { state: "stepping", groupIds: step.groupIds };
    this.#update = { step, batch };
    observer.updateStarted(step.stepIndex + 1);
    const { updateId, fromVersion } = step;
    backend
      .update({
        updateId,
        fromVersion,
        settings: updateSettingsOf(experiment),
        samples: batch.step.samples,
      })
      .then((result) => {
        this.#update = { step, batch, result };
        this.#trainer = { state: "stepped", groupIds: step.groupIds };
        this.#emit({ type: "train-end" });
        this.#options.changed.notify();
      })
      .catch((error: unknown) => this.fail(error));
  }

  async #publish(): Promise<void> {
    const { steps, observer, experiment, now } = this.#options;
    const update = this.#update;
    if (update?.result === undefined) return;
    const { step, batch, result } = update;
    this.#trainer = { state: "publishing", groupIds: step.groupIds };
    this.#version = result.version;
    await this.#serve();
    const metrics = buildStepMetrics(step.stepIndex, batch, step.fromVersion, result, {
      sampling: Math.max(0, step.startedAtMs - this.#samplingSinceMs) / 1000,
      update: (now() - step.startedAtMs) / 1000,
    });
    this.#options.onCapture(metrics.step, batch.capture);
    await steps.finishStep(step.stepIndex, metrics, now());
    this.#stepsDone += 1;
    this.#trainer = { state: "idle" };
    this.#update = undefined;
    this.#samplingSinceMs = now();
    this.#sampledTokens = 0;
    this.#emit({ type: "publish", version: this.#version });
    observer.stepDone(metrics);
    await this.#checkpointIfDue();
    const { warnings, stops } = checkLimits(metrics, experiment.limits, batch.capture);
    for (const warning of warnings) observer.warning(`step ${metrics.step}: ${warning}`);
    if (stops.length > 0) throw limitsExceeded(metrics.step, stops);
  }

  async #checkpointIfDue(): Promise<void> {
    const { backend, experiment } = this.#options;
    const every = experiment.retention.checkpointEverySteps;
    if (every === undefined || this.#stepsDone % every !== 0) return;
    await backend.checkpoint(`step-${this.#stepsDone}`);
  }

  /** Tells the sidecars where the present policy is. */
  async #serve(): Promise<void> {
    const { backend, ingest } = this.#options;
    const endpoints = await backend.policyEndpoints();
    const [first] = endpoints;
    if (first === undefined) {
      throw new OutriggerError("backend-serves-nothing", "the backend names no policy endpoint", {
        origin: "backend",
      });
    }
    ingest.publishPolicy({
      model: first.model,
      version: this.#version,
      endpoints: endpoints.map(({ url, model }) => ({ url, model })),
    });
  }

  async #drop(groupId: string): Promise<void> {
    const { steps, dispatcher, observer } = this.#options;
    await steps.dropGroup(groupId);
    const group = this.#groups.remove(groupId);
    this.#emit({ type: "drop", groupId });
    observer.warning(`group ${groupId} became too stale and was dropped`);
    for (const rolloutId of group?.unfinished ?? []) await dispatcher.stop(rolloutId, "cancelled");
  }

  async #cut(groupId: string): Promise<void> {
    const { dispatcher, observer } = this.#options;
    const group = this.#groups.get(groupId);
    if (group === undefined) return;
    observer.warning(`group ${groupId}: ${group.unfinished.size} stragglers were cut`);
    group.lastProgressAtMs = this.#options.now();
    for (const rolloutId of Array.from(group.unfinished))
      await dispatcher.stop(rolloutId, "tail-cut");
  }

  async #evaluateIfDue(signal: AbortSignal): Promise<void> {
    const every = this.#options.experiment.evaluation.everySteps;
    const isDue = every !== undefined && this.#stepsDone > 0 && this.#stepsDone % every === 0;
    if (isDue) await this.#evaluate(this.#stepsDone, signal);
  }

  /** No call may be held while the policy is evaluated. */
  async #evaluate(step: number, signal: AbortSignal): Promise<EvaluationResult> {
    const { experiment, heldOutTasks, dispatcher } = this.#options;
    if (this.#gate !== "open") {
      this.#options.ingest.resume();
      this.#gate = "open";
      this.#emit({ type: "resume" });
    }
    return evaluate(
      {
        ...this.#options,
        settings: experiment.evaluation,
        tasks: heldOutTasks,
        wakeDispatcher: () => dispatcher.wake(),
        throwIfFailed: () => this.#throwIfFailed(),
      },
      step,
      this.#version,
      signal,
    );
  }

  #showProgress(): void {
    const { experiment, observer } = this.#options;
    observer.stepProgress({
      step: Math.min(this.#stepsDone + 1, experiment.schedule.steps),
      steps: experiment.schedule.steps,
      rolloutsWanted: experiment.schedule.groupsPerStep * experiment.schedule.groupSize,
      sampledTokens: this.#sampledTokens,
      ...this.#groups.progress(this.#version),
    });
  }

  #emit(event: DistributedOmit<ScheduleEvent, "t">): void {
    const t = this.#options.now() - this.#startedAtMs;
    this.#options.onScheduleEvent({ t, ...event } as ScheduleEvent);
  }

  #throwIfFailed(): void {
    if (this.#failure !== undefined) throw asError(this.#failure);
  }
}

function limitsExceeded(step: number, stops: readonly string[]): OutriggerError {
  return new OutriggerError(
    "limits-exceeded",
    `the run stops after step ${step}:\n${stops.map((line) => `  ${line}`).join("\n")}`,
    {
      origin: "controller",
      hint: "Look at the rollouts with `outrigger rollouts list`, mend the cause, then --resume; or raise the limit in the experiment file.",
    },
  );
}

function asError(failure: unknown): Error {
  return failure instanceof Error ? failure : new Error("something that is no error was thrown");
}

/** The backend must be where the last durable step left it, or one update further. */
function checkVersion(version: number, steps: readonly StoredStep[]): void {
  const last = steps.at(-1);
  const metrics = last?.metrics as StepMetrics | undefined;
  const isRunning = last?.state === "updating";
  const expected = isRunning ? last.fromVersion : (metrics?.version ?? 0);
  if (version === expected || (isRunning && version === last.fromVersion + 1)) return;
  throw new OutriggerError(
    "backend-version-mismatch",
    `the backend is at policy version ${version}, the run at ${expected}`,
    {
      origin: "backend",
      hint: "The run's directory and the backend's state do not belong together; start a new run.",
    },
  );
}
