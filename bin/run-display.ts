import type {
  EvaluationResult,
  RunObserver,
  StepProgress,
} from "../controller/scheduler/run-observer.ts";
import type { StepMetrics } from "../controller/scheduler/step-metrics.ts";
import { openStatusLine, type StatusStream } from "./status-line.ts";

export interface RunDisplay extends RunObserver {
  line(text: string): void;
  close(): void;
}

export interface DisplayOptions {
  readonly stream: StatusStream;
  readonly now: () => number;
}

/** A bar that moves on a terminal; one line per step and evaluation there and elsewhere. */
export function openRunDisplay({ stream, now }: DisplayOptions): RunDisplay {
  const status = openStatusLine(stream, now);
  const durations: number[] = [];
  let stepStartedAtMs = now();
  /** Held-out tasks of the evaluation under way. */
  let evaluationTotal: number | undefined;
  return {
    line: (text) => status.line(text),
    close: () => status.close(),
    evaluationStarted: (step, total) => {
      evaluationTotal = total;
      const when = step === 0 ? "before training" : `after step ${step}`;
      status.line(`evaluation ${when}: ${total} rollouts, one per held-out task`);
    },
    evaluationProgress: (step, done, passed) =>
      status.show({
        name: `eval ${step}`,
        done,
        total: evaluationTotal ?? done,
        notes: [`passed ${passed}/${done}`],
      }),
    evaluationDone: (result) => {
      evaluationTotal = undefined;
      status.clear();
      status.line(describeEvaluation(result));
      stepStartedAtMs = now();
    },
    stepProgress: (progress) => {
      // Rollouts of the evaluation, and groups carried over, change things too.
      if (evaluationTotal !== undefined) return;
      status.show({
        name: `step ${progress.step}/${progress.steps}`,
        done: progress.rolloutsDone,
        total: progress.rolloutsWanted,
        notes: describeProgress(progress, timeLeft(durations, progress)),
      });
    },
    updateStarted: () => undefined,
    stepDone: (metrics) => {
      durations.push(now() - stepStartedAtMs);
      stepStartedAtMs = now();
      status.clear();
      status.line(describeStep(metrics));
    },
    warning: (message) => status.line(`warning: ${message}`),
  };
}

function describeProgress(progress: StepProgress, leftMs: number | undefined): string[] {
  const reward = progress.meanReward === null ? "–" : progress.meanReward.toFixed(2);
  return [
    `reward ${reward}`,
    `tokens ${progress.sampledTokens}`,
    `staleness ${progress.staleness}`,
    ...(leftMs === undefined ? [] : [`${duration(leftMs)} left`]),
  ];
}

/** Median of the last steps, for those that are still to come. */
function timeLeft(
  durations: readonly number[],
  { step, steps, rolloutsDone, rolloutsWanted }: StepProgress,
): number | undefined {
  const recent = durations.slice(-7).sort((a, b) => a - b);
  const median = recent[Math.floor(recent.length / 2)];
  if (median === undefined) return undefined;
  const share = Math.min(1, rolloutsDone / Math.max(1, rolloutsWanted));
  return median * (steps - step + 1 - share);
}

export function describeStep(metrics: StepMetrics): string {
  const { reward, rollouts, logprobGap, seconds } = metrics;
  const mean = reward === null ? "–" : reward.mean.toFixed(3);
  const lost = rollouts.total - rollouts.trained;
  return [
    `step ${metrics.step}`,
    metrics.applied ? `version ${metrics.version}` : "nothing to learn",
    `reward ${mean}`,
    `rollouts ${rollouts.total}${lost === 0 ? "" : ` (${lost} untrained)`}`,
    `rows ${metrics.samples}`,
    `tokens ${metrics.trainedTokens}`,
    `staleness ${metrics.staleness.mean.toFixed(1)}`,
    `|Δ logprob| ${logprobGap.meanAbs.toExponential(1)}`,
    `ratio ${metrics.meanRatio.toFixed(4)}`,
    `grad ${metrics.gradNorm.toPrecision(3)}`,
    `${(seconds.sampling + seconds.update).toFixed(1)} s`,
  ].join("  ");
}

function describeEvaluation(result: EvaluationResult): string {
  const missing = result.total - result.graded;
  return [
    result.passAt1 === null
      ? `no rewards (0/${result.total})`
      : `pass@1 ${result.passAt1.toFixed(3)} (${result.passed}/${result.total})`,
    result.step === 0 ? "before training" : `after step ${result.step}`,
    `version ${result.version}`,
    `${result.seconds.toFixed(1)} s`,
    ...(missing === 0 || result.passAt1 === null ? [] : [`${missing} without a reward`]),
  ].join("  ");
}

export function duration(ms: number): string {
  const seconds = Math.round(ms / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
