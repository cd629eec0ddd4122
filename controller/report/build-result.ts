import { type CaptureReport, sumCaptureReports } from "../../core/capture-report.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { EvaluationResult } from "../scheduler/run-observer.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import type { CallCounts } from "../store/call-store.ts";

/** Machine-readable summary of a run: `result.json`. */
export interface RunResult {
  readonly name: string;
  readonly runId: string;
  /** `done`, or why it ended before. */
  readonly state: "done" | "stopped" | "failed";
  readonly error?: { readonly reason: string; readonly message: string };
  /** null where that evaluation was not made. */
  readonly passAt1: { readonly before: number | null; readonly after: number | null };
  readonly evaluations: readonly EvaluationResult[];
  /** Optimizer steps done. */
  readonly steps: number;
  readonly policyVersion: number;
  /** Ended rollouts by end reason (evaluations included), and all. */
  readonly rollouts: Readonly<Record<string, number>> & { readonly total: number };
  readonly calls: { readonly captured: number; readonly incomplete: number };
  readonly incompleteByReason: Readonly<Record<string, number>>;
  /** What capture made of the trained steps' rollouts; `capture.jsonl` has them one by one. */
  readonly capture: {
    readonly rollouts: number;
    readonly zeroCapture: number;
    /** Share of rollouts with a reward; null without rollouts. */
    readonly rewardCoverage: number | null;
    /** Share of sampled tokens with a usable logprob; 1 where nothing was sampled. */
    readonly logprobCoverage: number;
    readonly total: CaptureReport;
  };
  /** Training rows, and trained tokens, of all steps. */
  readonly samples: number;
  readonly tokens: number;
  /** Sampler against trainer, nats per token: means over the updates, the largest of each tail. */
  readonly logprobGap: {
    readonly meanAbs: number;
    readonly p99Abs: number;
    readonly maxAbs: number;
    readonly kl: number;
  } | null;
  /** Over all sessions of the run. */
  readonly wallSeconds: number;
  readonly compute: string;
  readonly seed: number;
  readonly schedule: Experiment["schedule"]["kind"];
  readonly model: string;
  readonly checkpoint: string | null;
}

export interface RunFacts {
  readonly experiment: Experiment;
  readonly runId: string;
  readonly state: RunResult["state"];
  readonly error?: RunResult["error"];
  readonly evaluations: readonly EvaluationResult[];
  readonly steps: readonly StepMetrics[];
  readonly rolloutsByOutcome: Readonly<Record<string, number>>;
  readonly calls: CallCounts;
  readonly wallSeconds: number;
  readonly compute: string;
  readonly policyVersion: number;
  readonly checkpoint: string | null;
}

export function buildResult(facts: RunFacts): RunResult {
  const { experiment, evaluations, steps, calls } = facts;
  const before = evaluations.find((evaluation) => evaluation.step === 0);
  const last = evaluations.at(-1);
  const after = last !== undefined && last.step > 0 ? last : undefined;
  const incomplete = Object.values(calls.incompleteCalls).reduce((sum, n) => sum + n, 0);
  const outcomes = facts.rolloutsByOutcome;
  const applied = steps.filter((step) => step.applied);
  return {
    name: experiment.name,
    runId: facts.runId,
    state: facts.state,
    ...(facts.error !== undefined && { error: facts.error }),
    passAt1: { before: before?.passAt1 ?? null, after: after?.passAt1 ?? null },
    evaluations,
    steps: steps.length,
    policyVersion: facts.policyVersion,
    rollouts: { ...outcomes, total: Object.values(outcomes).reduce((sum, n) => sum + n, 0) },
    calls: { captured: calls.completeCalls, incomplete },
    incompleteByReason: calls.incompleteCalls,
    capture: sumCapture(steps),
    samples: steps.reduce((sum, step) => sum + step.samples, 0),
    tokens: steps.reduce((sum, step) => sum + step.trainedTokens, 0),
    logprobGap: summariseGap(applied.map((step) => step.logprobGap)),
    wallSeconds: facts.wallSeconds,
    compute: facts.compute,
    seed: experiment.seed,
    schedule: experiment.schedule.kind,
    model: experiment.backend.model,
    checkpoint: facts.checkpoint,
  };
}

function summariseGap(gaps: readonly StepMetrics["logprobGap"][]): RunResult["logprobGap"] {
  if (gaps.length === 0) return null;
  const mean = (of: (gap: StepMetrics["logprobGap"]) => number): number =>
    gaps.reduce((sum, gap) => sum + of(gap), 0) / gaps.length;
  return {
    meanAbs: mean((gap) => gap.meanAbs),
    p99Abs: Math.max(...gaps.map((gap) => gap.p99Abs)),
    maxAbs: Math.max(...gaps.map((gap) => gap.maxAbs)),
    kl: mean((gap) => gap.kl),
  };
}

function sumCapture(steps: readonly StepMetrics[]): RunResult["capture"] {
  const total = sumCaptureReports(steps.map((step) => step.capture));
  const rollouts = steps.reduce((sum, step) => sum + step.rollouts.total, 0);
  const rewarded = steps.reduce((sum, step) => sum + step.rollouts.rewarded, 0);
  const { sampled, withLogprobs } = total.tokens;
  return {
    rollouts,
    zeroCapture: steps.reduce((sum, step) => sum + step.zeroCapture, 0),
    rewardCoverage: rollouts === 0 ? null : rewarded / rollouts,
    logprobCoverage: sampled === 0 ? 1 : withLogprobs / sampled,
    total,
  };
}
