import type { RunCapture } from "./capture-report.ts";

/** Limits on what capture may lose; each is a share from 0 to 1, undefined where not checked. */
export interface CaptureThresholds {
  /** Samplings that are incomplete, of all samplings. */
  readonly maxIncomplete?: number;
  /** Rollouts of which no token can be trained, of all rollouts. */
  readonly maxZeroCapture?: number;
  /** Sampled tokens given up because a call was incomplete, too long or drifted, of all sampled. */
  readonly maxLostTokens?: number;
  /** Turns whose prompt does not go on exactly from the turn before, of all trained calls. */
  readonly maxBreaks?: number;
  /** Sampled tokens with a usable logprob, of all sampled. */
  readonly minLogprobCoverage?: number;
  /** Rollouts with a known reward, of all rollouts. */
  readonly minRewardCoverage?: number;
}

export interface ThresholdBreach {
  readonly threshold: keyof CaptureThresholds;
  readonly limit: number;
  readonly actual: number;
  readonly message: string;
}

/** The thresholds that a run's capture does not keep; empty where all is well. */
export function findThresholdBreaches(
  run: RunCapture,
  thresholds: CaptureThresholds,
): ThresholdBreach[] {
  const { calls, tokens, breaks } = run.total;
  const lost = tokens.lost.incomplete + tokens.lost["over-length"] + tokens.lost.drift;
  const actual: Record<keyof CaptureThresholds, number | null> = {
    maxIncomplete: share(sumOf(calls.incomplete), calls.samplings),
    maxZeroCapture: share(run.zeroCapture, run.rollouts.length),
    maxLostTokens: share(lost, tokens.sampled),
    maxBreaks: share(sumOf(breaks), calls.trained),
    minLogprobCoverage: run.logprobCoverage,
    minRewardCoverage: run.rewardCoverage,
  };
  const breaches: ThresholdBreach[] = [];
  for (const threshold of Object.keys(actual) as (keyof CaptureThresholds)[]) {
    const limit = thresholds[threshold];
    const value = actual[threshold];
    if (limit === undefined || value === null) continue;
    const isMaximum = threshold.startsWith("max");
    if (isMaximum ? value <= limit : value >= limit) continue;
    const message = `${names[threshold]}: ${percent(value)}, ${isMaximum ? "at most" : "at least"} ${percent(limit)} wanted`;
    breaches.push({ threshold, limit, actual: value, message });
  }
  return breaches;
}

const names: Readonly<Record<keyof CaptureThresholds, string>> = {
  maxIncomplete: "incomplete calls",
  maxZeroCapture: "rollouts without a trainable token",
  maxLostTokens: "lost tokens",
  maxBreaks: "breaks between turns",
  minLogprobCoverage: "logprob coverage",
  minRewardCoverage: "reward coverage",
};

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

function sumOf(counts: Readonly<Record<string, number>>): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

function percent(value: number): string {
  return `${Number((100 * value).toFixed(3))} %`;
}
