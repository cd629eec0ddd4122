import type { RunCapture } from "../../core/capture-report.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import {
  decideSchedule,
  type ScheduleAction,
  type ScheduleSettings,
} from "../../core/scheduling/decide-schedule.ts";
import type { ScheduleEvent } from "../../core/scheduling/schedule-event.ts";
import type { ScheduleState } from "../../core/scheduling/schedule-state.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";
import { verifierFailed, verifierFailureOf } from "../grading/verifier-failure.ts";
import type { IngestServer } from "../ingest/ingest-server.ts";
import type { RolloutDispatcher } from "../rollouts/rollout-dispatcher.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore, StoredRollout } from "../store/rollout-store.ts";
import type { StepStore } from "../store/step-store.ts";
import { type ActiveGroups, createActiveGroups, loadActiveGroups } from "./active-groups.ts";
import type { ChangeSignal } from "./change-signal.ts";
import { checkVersion } from "./check-version.ts";
import { enforceLimits } from "./enforce-limits.ts";
import { evaluate } from "./evaluate.ts";
import { scheduleSettingsOf } from "./experiment-settings.ts";
import { createGroupKeeper, type GroupKeeper } from "./group-keeper.ts";
import {
  createPolicyKeeper,
  type NamedCheckpoint,
  type PolicyHistory,
  type PolicyKeeper,
} from "./policy-keeper.ts";
import type { EvaluationResult, RunObserver } from "./run-observer.ts";
import { createSamplingGate, type SamplingGate } from "./sampling-gate.ts";
import type { EmitScheduleEvent } from "./schedule-log.ts";
import { servePolicy } from "./serve-policy.ts";
import { createUpdateRunner, type UpdateRunner } from "./update-runner.ts";

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

/** Asked for, and done between two updates. */
interface WantedRollback {
  readonly checkpoint: string;
  readonly resolve: (version: number) => void;
  readonly reject: (error: Error) => void;
}

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
  readonly #gate: SamplingGate;
  readonly #updates: UpdateRunner;
  readonly #policies: PolicyKeeper;
  #wantedRollback: WantedRollback | undefined;
  #groups: ActiveGroups = createActiveGroups();
  #keeper: GroupKeeper | undefined;
  #isResumed = false;
  #isOver = false;
  #samplingSinceMs: number;
  #version = 0;
  #stepsDone = 0;
  #sampledTokens = 0;
  #wake: NodeJS.Timeout | undefined;
  #failure: unknown;

  constructor(options: TrainingRunOptions) {
    const { experiment, ingest, observer, changed } = options;
    const { holdLimitMs, drainLimitMs } = experiment.schedule;
    const onFailed = (error: unknown): void => this.fail(error);
    const emit = this.#emit;
    this.#options = options;
    this.#settings = scheduleSettingsOf(experiment);
    this.#gate = createSamplingGate({
      ingest,
      limits: { holdLimitMs, drainLimitMs },
      emit,
      onDrained: () => changed.notify(),
      onFailed,
      warn: (message) => observer.warning(message),
    });
    this.#updates = createUpdateRunner({
      ...options,
      emit,
      onStepped: () => changed.notify(),
      onFailed,
    });
    this.#policies = createPolicyKeeper(options);
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
    const { steps, backend, dispatcher, experiment, trainTasks, observer, now } = this.#options;
    const known = await steps.steps();
    this.#stepsDone = known.filter((step) => step.state === "published").length;
    const admittedCount = await steps.admittedCount();
    this.#isResumed = admittedCount > 0;
    this.#groups = await loadActiveGroups(this.#options, now());
    this.#keeper = createGroupKeeper({
      groups: this.#groups,
      admittedCount,
      steps,
      dispatcher,
      tasks: trainTasks,
      seed: experiment.seed,
      groupSize: experiment.schedule.groupSize,
      emit: this.#emit,
      warn: (message) => observer.warning(message),
      now,
    });
    await this.#policies.finishRollback();
    const { rollbacks } = await this.#policies.history();
    const endpoints = await backend.policyEndpoints();
    this.#version = endpoints[0]?.version ?? 0;
    checkVersion(this.#version, known, rollbacks.at(-1)?.version);
    await servePolicy(this.#options, this.#version);
  }

  /**
   * Trains until all steps are done. When the signal aborts it starts nothing more, finishes an
   * update that is under way, and rejects with the signal's reason.
   */
  async run(signal: AbortSignal): Promise<void> {
    const { experiment } = this.#options;
    const { before, after } = experiment.evaluation;
    try {
      await this.#takeOver(signal);
      if (this.#stepsDone === 0 && before) await this.#evaluate(0, signal);
      await this.#loop(signal);
      await this.#evaluateIfDue(signal);
      if (after) await this.#evaluate(this.#stepsDone, signal);
    } finally {
      clearTimeout(this.#wake);
      this.#isOver = true;
      this.#wantedRollback?.reject(
        new OutriggerError("policy-busy", "the run has ended", { origin: "user" }),
      );
    }
  }

  /** The run's checkpoint of now, and all those before. */
  checkpoint(): Promise<NamedCheckpoint> {
    return this.#policies.checkpoint(this.#stepsDone);
  }

  policyHistory(): Promise<PolicyHistory> {
    return this.#policies.history();
  }

  /**
   * Publishes a checkpoint as the next version, as soon as no update is under way. What was sampled
   * and not yet trained is dropped: it is of the policy that is left.
   */
  rollBack(checkpoint: string): Promise<number> {
    if (this.#wantedRollback !== undefined || this.#isOver) {
      const message = this.#isOver ? "the run has ended" : "a rollback is under way already";
      return Promise.reject(
        new OutriggerError("policy-busy", message, { origin: "user", retryable: true }),
      );
    }
    return new Promise((resolve, reject) => {
      this.#wantedRollback = { checkpoint, resolve, reject };
      this.#options.changed.notify();
    });
  }

  /** When the run is being stopped: an update under way is finished and noted; no call is held. */
  async settle(): Promise<void> {
    const never = new AbortController().signal;
    try {
      await this.#untilStepped(never);
      if (this.#failure === undefined) await this.#publish();
    } finally {
      this.#gate.open();
    }
  }

  /**
   * What an earlier session left. Its harnesses are gone and none is started before this is done:
   * to the log that is a shut gate with nothing in flight.
   */
  async #takeOver(signal: AbortSignal): Promise<void> {
    if (!this.#isResumed) return;
    this.#emit({ type: "pause" });
    this.#emit({ type: "drained" });
    await this.#finishInterruptedStep(signal);
    this.#emit({ type: "resume" });
  }

  async #finishInterruptedStep(signal: AbortSignal): Promise<void> {
    const step = (await this.#options.steps.steps()).at(-1);
    if (step?.state !== "updating") return;
    this.#options.log.info({ step: step.stepIndex + 1 }, "an update was interrupted; finishing it");
    this.#options.observer.updateStarted(step.stepIndex + 1);
    await this.#updates.again(step);
    await this.#untilStepped(signal);
    this.#throwIfFailed();
    await this.#publish();
  }

  /** Until no update is under way any more, or something failed. */
  async #untilStepped(signal: AbortSignal): Promise<void> {
    const { changed } = this.#options;
    while (this.#updates.trainer.state === "stepping" && this.#failure === undefined) {
      const next = changed.next();
      if (this.#updates.trainer.state === "stepping") await next(signal);
    }
  }

  async #loop(signal: AbortSignal): Promise<void> {
    const { changed, experiment, dispatcher } = this.#options;
    dispatcher.wake();
    this.#samplingSinceMs = this.#options.now();
    while (this.#stepsDone < experiment.schedule.steps) {
      const next = changed.next();
      this.#throwIfFailed();
      if (signal.aborted) throw signal.reason;
      if (this.#wantedRollback !== undefined && this.#updates.trainer.state === "idle") {
        await this.#rollBackNow(this.#wantedRollback, signal);
        continue;
      }
      const actions = decideSchedule(this.#state(), this.#settings);
      for (const action of actions) await this.#perform(action, signal);
      const isWaiting = actions.every((action) => action.type === "wake");
      if (isWaiting) await next(signal);
    }
  }

  async #rollBackNow(wanted: WantedRollback, signal: AbortSignal): Promise<void> {
    const { changed, observer } = this.#options;
    try {
      if (this.#gate.state === "open") this.#gate.shut(signal);
      while (this.#gate.state !== "drained") {
        const next = changed.next();
        this.#throwIfFailed();
        await next(signal);
      }
      const version = await this.#policies.rollBack(
        wanted.checkpoint,
        this.#version,
        this.#stepsDone,
      );
      this.#version = version;
      await servePolicy(this.#options, version);
      this.#emit({ type: "publish", version });
      for (const { groupId } of this.#groups.toSchedule(0)) {
        await this.#keeper?.drop(groupId, "is of the policy that was rolled back");
      }
      observer.warning(`rolled back to ${wanted.checkpoint}, now version ${version}`);
      wanted.resolve(version);
    } catch (error) {
      wanted.reject(error as Error);
      // A name that is not there changes nothing; anything else leaves the policy in doubt.
      if (!(error instanceof OutriggerError && error.reason === "checkpoint-unknown")) throw error;
    } finally {
      this.#wantedRollback = undefined;
      this.#gate.open();
    }
  }

  #state(): ScheduleState {
    const { experiment, now, runStartedAtMs } = this.#options;
    return {
      nowMs: now() - runStartedAtMs,
      version: this.#version,
      stepsLeft: experiment.schedule.steps - this.#stepsDone,
      waitingGroupCount: endlessGroupCount,
      groups: this.#groups.toSchedule(runStartedAtMs),
      gate: this.#gate.state,
      trainer: this.#updates.trainer,
    };
  }

  async #perform(action: ScheduleAction, signal: AbortSignal): Promise<void> {
    switch (action.type) {
      case "admit":
        await this.#keeper?.admit(action.groupCount, this.#version);
        this.#showProgress();
        return;
      case "pause":
        this.#gate.shut(signal);
        return;
      case "resume":
        this.#gate.open();
        return;
      case "start-update":
        for (const groupId of action.groupIds) this.#groups.remove(groupId);
        this.#options.observer.updateStarted(this.#stepsDone + 1);
        await this.#updates.begin(this.#stepsDone, this.#version, action.groupIds);
        return;
      case "publish":
        await this.#publish();
        await this.#evaluateIfDue(signal);
        return;
      case "drop":
        await this.#keeper?.drop(action.groupId);
        return;
      case "cut":
        await this.#keeper?.cut(action.groupId);
        return;
      case "wake":
        this.#wakeAt(action.atMs);
        return;
    }
  }

  #wakeAt(atMs: number): void {
    const { changed, runStartedAtMs, now } = this.#options;
    clearTimeout(this.#wake);
    const delayMs = Math.max(0, atMs + runStartedAtMs - now());
    this.#wake = setTimeout(() => changed.notify(), delayMs);
  }

  async #publish(): Promise<void> {
    const finished = await this.#updates.finish((version) => {
      this.#version = version;
      return servePolicy(this.#options, version);
    }, this.#samplingSinceMs);
    if (finished === undefined) return;
    this.#stepsDone += 1;
    this.#samplingSinceMs = this.#options.now();
    this.#sampledTokens = 0;
    this.#options.observer.stepDone(finished.metrics);
    await this.#checkpointIfDue();
    const { experiment, observer, rollouts } = this.#options;
    const ungraded = await verifierFailureOf(rollouts, finished.rollouts);
    if (ungraded !== undefined) {
      const step = `step ${this.#stepsDone}`;
      throw verifierFailed(step, finished.rollouts.length, ungraded);
    }
    enforceLimits(finished, experiment.limits, (message) => observer.warning(message));
  }

  async #checkpointIfDue(): Promise<void> {
    const every = this.#options.experiment.retention.checkpointEverySteps;
    if (every === undefined || this.#stepsDone % every !== 0) return;
    await this.checkpoint();
  }

  async #evaluateIfDue(signal: AbortSignal): Promise<void> {
    const every = this.#options.experiment.evaluation.everySteps;
    const isDue = every !== undefined && this.#stepsDone > 0 && this.#stepsDone % every === 0;
    if (isDue) await this.#evaluate(this.#stepsDone, signal);
  }

  /** No call may be held while the policy is evaluated. */
  async #evaluate(step: number, signal: AbortSignal): Promise<EvaluationResult> {
    const { experiment, heldOutTasks, dispatcher } = this.#options;
    this.#gate.open();
    const result = await evaluate(
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
    // What was sampled meanwhile was not for the next step.
    this.#samplingSinceMs = this.#options.now();
    return result;
  }

  #showProgress(): void {
    const { experiment, observer } = this.#options;
    if (this.#stepsDone >= experiment.schedule.steps) return;
    observer.stepProgress({
      step: this.#stepsDone + 1,
      steps: experiment.schedule.steps,
      rolloutsWanted: experiment.schedule.groupsPerStep * experiment.schedule.groupSize,
      sampledTokens: this.#sampledTokens,
      ...this.#groups.progress(this.#version),
    });
  }

  readonly #emit: EmitScheduleEvent = (event) => {
    const t = this.#options.now() - this.#options.runStartedAtMs;
    this.#options.onScheduleEvent({ t, ...event } as ScheduleEvent);
  };

  #throwIfFailed(): void {
    if (this.#failure !== undefined) throw asError(this.#failure);
  }
}

function asError(failure: unknown): Error {
  return failure instanceof Error ? failure : new Error("something that is no error was thrown");
}
