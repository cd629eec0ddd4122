import type { RunCapture } from "../../core/capture-report.ts";
import type { TrainerState } from "../../core/scheduling/schedule-state.ts";
import type { TrainerBackend, UpdateResult } from "../../core/trainer-backend.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore } from "../store/rollout-store.ts";
import type { StepStore, StoredStep } from "../store/step-store.ts";
import { buildStepBatch, type StepBatch } from "./build-step-batch.ts";
import { trainingSettingsOf, updateSettingsOf } from "./experiment-settings.ts";
import type { EmitScheduleEvent } from "./schedule-log.ts";
import { buildStepMetrics, type StepMetrics } from "./step-metrics.ts";

export interface UpdateRunnerOptions {
  readonly runId: string;
  readonly experiment: Experiment;
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly calls: CallStore;
  readonly backend: TrainerBackend;
  readonly maxSequenceLength: number;
  readonly emit: EmitScheduleEvent;
  /** What was captured of a step's rollouts; told again when an interrupted step is finished. */
  readonly onCapture: (step: number, capture: RunCapture) => void;
  /** The update under way is over. */
  readonly onStepped: () => void;
  readonly onFailed: (error: unknown) => void;
  readonly now: () => number;
}

/** What became of an update, once its policy is served and all of it is durable. */
export interface FinishedUpdate {
  readonly metrics: StepMetrics;
  readonly capture: RunCapture;
  readonly rollouts: StepBatch["rollouts"];
}

/**
 * One update after another: `idle` → `stepping` (the backend has it) → `stepped` → `publishing` →
 * `idle`. It is durable before the backend hears of it, under an id that is the same each time: a
 * backend that had applied it before a kill says so again.
 */
export interface UpdateRunner {
  readonly trainer: TrainerState;
  begin(stepIndex: number, fromVersion: number, groupIds: readonly string[]): Promise<void>;
  /** One that an earlier session left unfinished. */
  again(step: StoredStep): Promise<void>;
  /** Undefined when there is none that is stepped. `serve` tells whoever samples. */
  finish(
    serve: (version: number) => Promise<void>,
    samplingSinceMs: number,
  ): Promise<FinishedUpdate | undefined>;
}

export function createUpdateRunner(options: UpdateRunnerOptions): UpdateRunner {
  const { runId, experiment, steps, backend, emit, onStepped, onFailed, now } = options;
  let trainer: TrainerState = { state: "idle" };
  let update: { step: StoredStep; batch: StepBatch; result?: UpdateResult } | undefined;

  async function start(step: StoredStep): Promise<void> {
    const { updateId, fromVersion, groupIds, stepIndex } = step;
    emit({ type: "train-start", version: fromVersion, groups: [...groupIds] });
    const batch = await batchOf(options, groupIds);
    trainer = { state: "stepping", groupIds };
    update = { step, batch };
    const settings = updateSettingsOf(experiment, stepIndex);
    backend
      .update({ updateId, fromVersion, settings, samples: batch.step.samples })
      .then((result) => {
        update = { step, batch, result };
        trainer = { state: "stepped", groupIds };
        emit({ type: "train-end" });
        onStepped();
      })
      .catch(onFailed);
  }

  return {
    get trainer() {
      return trainer;
    },
    begin: async (stepIndex, fromVersion, groupIds) => {
      const updateId = `${runId}/step-${stepIndex + 1}`;
      const startedAtMs = now();
      const step = { stepIndex, updateId, fromVersion, groupIds };
      await steps.beginStep(step, startedAtMs);
      await start({ ...step, state: "updating", startedAtMs });
    },
    again: start,
    finish: async (serve, samplingSinceMs) => {
      if (update?.result === undefined) return undefined;
      const { step, batch, result } = update;
      trainer = { state: "publishing", groupIds: step.groupIds };
      await serve(result.version);
      const metrics = buildStepMetrics(step.stepIndex, batch, step.fromVersion, result, {
        sampling: Math.max(0, step.startedAtMs - samplingSinceMs) / 1000,
        update: (now() - step.startedAtMs) / 1000,
      });
      options.onCapture(metrics.step, batch.capture);
      await steps.finishStep(step.stepIndex, metrics, now());
      trainer = { state: "idle" };
      update = undefined;
      emit({ type: "publish", version: result.version });
      return { metrics, capture: batch.capture, rollouts: batch.rollouts };
    },
  };
}

function batchOf(options: UpdateRunnerOptions, groupIds: readonly string[]): Promise<StepBatch> {
  const { experiment, maxSequenceLength } = options;
  const { maxRowTokens, overLength, includeSideCalls } = experiment.algorithm;
  return buildStepBatch(options, groupIds, {
    training: trainingSettingsOf(experiment),
    assembly: {
      includeSideCalls,
      overLength,
      maxRowTokens: Math.min(maxRowTokens ?? maxSequenceLength, maxSequenceLength),
    },
  });
}
