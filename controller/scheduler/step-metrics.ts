import type { CaptureReport } from "../../core/capture-report.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateResult } from "../../core/trainer-backend.ts";
import type { StepBatch } from "./build-step-batch.ts";

/** One optimizer step, as stored, shown and reported. */
export interface StepMetrics {
  /** 1 for the first update. */
  readonly step: number;
  /** Policy version after it. */
  readonly version: number;
  /** False when nothing could be learnt (every group without signal): the policy is unchanged. */
  readonly applied: boolean;
  readonly rollouts: {
    readonly total: number;
    /** By end reason; `rejected` without an attempt. */
    readonly byEndReason: Readonly<Record<string, number>>;
    readonly trained: number;
    readonly rewarded: number;
  };
  /** Over the rollouts in the baseline; null when there is none. */
  readonly reward: { readonly mean: number; readonly std: number } | null;
  readonly groups: {
    readonly total: number;
    readonly zeroSignal: number;
    readonly dropped: number;
  };
  readonly samples: number;
  readonly trainedTokens: number;
  /** Tokens of all rows together, prompts included. */
  readonly rowTokens: number;
  /** In versions, over samples. */
  readonly staleness: { readonly mean: number; readonly max: number };
  readonly loss: number;
  readonly gradNorm: number;
  readonly meanRatio: number;
  readonly clippedFraction: number;
  readonly logprobGap: UpdateResult["logprobGap"];
  readonly capture: CaptureReport;
  readonly zeroCapture: number;
  readonly backend: Readonly<Record<string, number>>;
  readonly seconds: { readonly sampling: number; readonly update: number };
}

/** @param fromVersion the version that the update started from */
export function buildStepMetrics(
  stepIndex: number,
  batch: StepBatch,
  fromVersion: number,
  result: UpdateResult,
  seconds: StepMetrics["seconds"],
): StepMetrics {
  const { rollouts, step, capture } = batch;
  return {
    step: stepIndex + 1,
    version: result.version,
    applied: result.applied,
    rollouts: {
      total: rollouts.length,
      byEndReason: countBy(rollouts.map((r) => r.endReason ?? "rejected")),
      trained: step.trainedRollouts,
      rewarded: rollouts.filter((r) => r.reward !== undefined).length,
    },
    reward: rewardStatistics(rollouts),
    groups: {
      total: step.groups,
      zeroSignal: step.zeroSignalGroups,
      dropped: step.droppedGroups,
    },
    samples: step.samples.length,
    trainedTokens: step.trainedTokens,
    rowTokens: step.samples.reduce((sum, sample) => sum + sample.tokenIds.length, 0),
    staleness: stalenessOf(step.samples, fromVersion),
    loss: result.loss,
    gradNorm: result.gradNorm,
    meanRatio: result.meanRatio,
    clippedFraction: result.clippedFraction,
    logprobGap: result.logprobGap,
    capture: capture.total,
    zeroCapture: capture.zeroCapture,
    backend: result.metrics,
    seconds,
  };
}

function rewardStatistics(
  rollouts: StepBatch["rollouts"],
): { readonly mean: number; readonly std: number } | null {
  const rewards = rollouts.flatMap(({ reward, outcome }) =>
    reward !== undefined && outcome?.isInBaseline === true ? [reward] : [],
  );
  if (rewards.length === 0) return null;
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const variance =
    rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) /
    Math.max(1, rewards.length - 1);
  return { mean, std: Math.sqrt(variance) };
}

/** A sample is as stale as its oldest trained token. */
function stalenessOf(
  samples: readonly TrainingSample[],
  fromVersion: number,
): { readonly mean: number; readonly max: number } {
  const values = samples.map((sample) => {
    let oldest = fromVersion;
    sample.policyVersions.forEach((version, i) => {
      if (sample.lossMask[i] === 1 && version < oldest) oldest = version;
    });
    return fromVersion - oldest;
  });
  if (values.length === 0) return { mean: 0, max: 0 };
  return {
    mean: values.reduce((sum, value) => sum + value, 0) / values.length,
    max: Math.max(...values),
  };
}

function countBy(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}
