import type { StepMetrics } from "./step-metrics.ts";

export interface EvaluationResult {
  /** Optimizer steps done when it was made; 0 = before training. */
  readonly step: number;
  readonly version: number;
  /** Rollouts with at least the passing reward. */
  readonly passed: number;
  /** Rollouts with a reward. */
  readonly graded: number;
  readonly total: number;
  /** passed / total: a rollout without a reward has not passed. null when none has a reward. */
  readonly passAt1: number | null;
  readonly meanReward: number | null;
  readonly seconds: number;
}

/** What a display or a log is told while a run goes on. Must not throw. */
export interface RunObserver {
  evaluationStarted(step: number, total: number): void;
  evaluationProgress(step: number, done: number, passed: number): void;
  evaluationDone(result: EvaluationResult): void;
  /** Something changed in the step that is being sampled. */
  stepProgress(progress: StepProgress): void;
  updateStarted(step: number): void;
  stepDone(metrics: StepMetrics): void;
  warning(message: string): void;
}

export interface StepProgress {
  /** The step that comes next, from 1. */
  readonly step: number;
  readonly steps: number;
  readonly rolloutsDone: number;
  readonly rolloutsWanted: number;
  readonly meanReward: number | null;
  readonly sampledTokens: number;
  /** In versions, of the oldest active group. */
  readonly staleness: number;
}
