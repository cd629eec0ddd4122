import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { Controller } from "../open-controller.ts";
import { buildStepBatch } from "../scheduler/build-step-batch.ts";
import { trainingSettingsOf } from "../scheduler/experiment-settings.ts";
import type { EvaluationResult } from "../scheduler/run-observer.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import { buildResult, type RunResult } from "./build-result.ts";
import { type ReportFacts, writeReport } from "./write-report.ts";

export interface CollectOptions {
  readonly experiment: Experiment;
  readonly directory: string;
  readonly runId: string;
  readonly controller: Controller;
  readonly compute: string;
  readonly policyVersion: number;
  readonly checkpoint: string | null;
  /** Why the session ended early; undefined when it is done. */
  readonly failure: unknown;
  openDecoder(): Promise<((ids: readonly number[]) => string) | undefined>;
}

const maxReportRollouts = 5_000;

/** Gathers what the stores say about the run, writes result and report, and gives the result. */
export async function collectResult(options: CollectOptions): Promise<RunResult> {
  const { controller, experiment, failure } = options;
  const { steps, rollouts, calls } = controller;
  const known = await steps.steps<StepMetrics>();
  const metrics = known.flatMap((step) => (step.metrics === undefined ? [] : [step.metrics]));
  const evaluations: EvaluationResult[] = [];
  for (let step = 0; step <= metrics.length; step += 1) {
    const evaluation = await steps.fact<EvaluationResult>(`eval-${step}`);
    if (evaluation !== undefined) evaluations.push(evaluation);
  }
  const result = buildResult({
    experiment,
    runId: options.runId,
    ...describeEnd(failure),
    evaluations,
    steps: metrics,
    rolloutsByOutcome: await rollouts.countByOutcome(),
    calls: await calls.callCounts(),
    wallSeconds: ((await steps.fact<number>("wall-ms")) ?? 0) / 1000,
    compute: options.compute,
    policyVersion: options.policyVersion,
    checkpoint: options.checkpoint,
  });
  const decode = await options.openDecoder();
  await writeReport(options.directory, {
    result,
    steps: metrics,
    rollouts: await rollouts.list({ limit: maxReportRollouts }),
    samples: await sampleViews(options, known.at(-1)?.groupIds ?? []),
    ...(decode !== undefined && { decode }),
    experiment,
  });
  return result;
}

function describeEnd(failure: unknown): Pick<RunResult, "state" | "error"> {
  if (failure === undefined) return { state: "done" };
  const isKnown = failure instanceof OutriggerError;
  if (isKnown && failure.reason === "run-stopped") return { state: "stopped" };
  const reason = isKnown ? failure.reason : "unexpected";
  const message = failure instanceof Error ? failure.message : "something that is no error";
  return { state: "failed", error: { reason, message } };
}

/** Rows of the last step: best and worst rewards first, so that both kinds are seen. */
async function sampleViews(
  { controller, experiment }: CollectOptions,
  groupIds: readonly string[],
): Promise<ReportFacts["samples"]> {
  if (groupIds.length === 0) return [];
  const batch = await buildStepBatch(controller, groupIds, {
    training: trainingSettingsOf(experiment),
    assembly: { includeSideCalls: experiment.algorithm.includeSideCalls },
  });
  const rewardOf = new Map(batch.rollouts.map((r) => [r.rolloutId, r.reward ?? null]));
  const rows = batch.step.samples
    .map((sample) => ({ sample, reward: rewardOf.get(sample.rolloutId) ?? null }))
    .sort((a, b) => (b.reward ?? 0) - (a.reward ?? 0));
  const half = Math.ceil(experiment.retention.reportSamples / 2);
  return rows.length <= 2 * half ? rows : [...rows.slice(0, half), ...rows.slice(-half)];
}
