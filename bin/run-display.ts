import { MultiBar, Presets, type SingleBar } from "cli-progress";
import type {
  EvaluationResult,
  RunObserver,
  StepProgress,
} from "../controller/scheduler/run-observer.ts";
import type { StepMetrics } from "../controller/scheduler/step-metrics.ts";

export interface RunDisplay extends RunObserver {
  line(text: string): void;
  close(): void;
}

export interface DisplayOptions {
  readonly stream: NodeJS.WriteStream;
  readonly now: () => number;
}

/** A bar that moves on a terminal; one line per step and evaluation elsewhere. */
export function openRunDisplay(options: DisplayOptions): RunDisplay {
  const { stream, now } = options;
  const bars = stream.isTTY ? openBars(stream) : undefined;
  let bar: SingleBar | undefined;
  let barName = "";
  const durations: number[] = [];
  let stepStartedAtMs = now();
  const line = (text: string): void => {
    if (bars === undefined) stream.write(`${text}\n`);
    else bars.log(`${text}\n`);
  };
  const show = (name: string, done: number, total: number, note: string): void => {
    if (bars === undefined) return;
    if (barName !== name) {
      if (bar !== undefined) bars.remove(bar);
      bar = bars.create(total, 0, { name, note });
      barName = name;
    }
    bar?.setTotal(total);
    bar?.update(Math.min(done, total), { name, note });
  };
  const clear = (): void => {
    if (bar !== undefined) bars?.remove(bar);
    bar = undefined;
    barName = "";
  };
  return {
    line,
    close: () => {
      clear();
      bars?.stop();
    },
    evaluationStarted: (step, total) => {
      line(
        `evaluation ${step === 0 ? "before training" : `after step ${step}`}: ${total} held-out tasks`,
      );
    },
    evaluationProgress: (step, done, passed) =>
      show(`eval ${step}`, done, Math.max(done, 1), `passed ${passed}/${done}`),
    evaluationDone: (result) => {
      clear();
      line(describeEvaluation(result));
      stepStartedAtMs = now();
    },
    stepProgress: (progress) =>
      show(
        `step ${progress.step}/${progress.steps}`,
        progress.rolloutsDone,
        progress.rolloutsWanted,
        describeProgress(progress, timeLeft(durations, progress)),
      ),
    updateStarted: () => undefined,
    stepDone: (metrics) => {
      durations.push(now() - stepStartedAtMs);
      stepStartedAtMs = now();
      clear();
      line(describeStep(metrics));
    },
    warning: (message) => line(`warning: ${message}`),
  };
}

function openBars(stream: NodeJS.WriteStream): MultiBar {
  return new MultiBar(
    {
      stream,
      format: "{name} {bar} {value}/{total}  {note}",
      barsize: 24,
      clearOnComplete: true,
      hideCursor: true,
      fps: 8,
      forceRedraw: true,
    },
    Presets.shades_classic,
  );
}

function describeProgress(progress: StepProgress, leftMs: number | undefined): string {
  const reward = progress.meanReward === null ? "–" : progress.meanReward.toFixed(2);
  const left = leftMs === undefined ? "" : `  ${duration(leftMs)} left`;
  return `reward ${reward}  tokens ${progress.sampledTokens}  staleness ${progress.staleness}${left}`;
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
    `pass@1 ${result.passAt1.toFixed(3)} (${result.passed}/${result.total})`,
    result.step === 0 ? "before training" : `after step ${result.step}`,
    `version ${result.version}`,
    `${result.seconds.toFixed(1)} s`,
    ...(missing === 0 ? [] : [`${missing} without a reward`]),
  ].join("  ");
}

export function duration(ms: number): string {
  const seconds = Math.round(ms / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
