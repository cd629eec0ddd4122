import type { Sample } from "../../core/sample.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import type { StoredRollout } from "../store/rollout-store.ts";
import type { RunResult } from "./build-result.ts";
import { escapeHtml, htmlPage, htmlTable } from "./html-page.ts";

/** A training row as people look at it. */
export interface SampleView {
  readonly rolloutId: string;
  readonly reward: number | null;
  readonly sample: Sample;
  /** Text of each token; absent where no decoder was at hand. */
  readonly texts?: readonly string[];
}

export interface ReportInput {
  readonly result: RunResult;
  readonly charts: readonly string[];
  readonly steps: readonly StepMetrics[];
  readonly rollouts: readonly StoredRollout[];
  readonly samples: readonly SampleView[];
  /** As it ran. */
  readonly experiment: Experiment;
}

const style = `
th,td{white-space:nowrap}.scroll{max-height:420px;overflow:auto}
pre{background:#f5f7fa;padding:12px;overflow:auto}.row{font:12px/1.9 ui-monospace,monospace;word-break:break-all}
.row span{padding:2px 1px;border-radius:3px}.t{background:#cdeccd}.c{color:#6b7484}
.big{font-size:28px;font-weight:600}.cards{display:flex;gap:32px;flex-wrap:wrap}.cards div{min-width:120px}`;

/** One file that needs nothing else: curves, configuration, rollouts, samples with their masks. */
export function reportHtml(input: ReportInput): string {
  const { result } = input;
  return htmlPage(
    result.name,
    style,
    `<h1>${escapeHtml(result.name)}</h1>
<p>Run ${escapeHtml(result.runId)} · seed ${result.seed} · ${escapeHtml(result.compute)} · ${escapeHtml(result.state)}</p>
<p>${escapeHtml(settingsLine(input.experiment))}</p>
${cards(result)}
<h2>Curves</h2><div class="charts">${input.charts.join("")}</div>
<h2>Steps</h2><div class="scroll">${stepTable(input.steps)}</div>
<h2>Samples</h2><p>Trained tokens have a green ground; hover for logprob and policy version.</p>
${input.samples.map(sampleRow).join("") || "<p>None.</p>"}
<h2>Rollouts</h2><div class="scroll">${rolloutTable(input.rollouts)}</div>
<h2>Result</h2><pre>${escapeHtml(JSON.stringify(result, null, 2))}</pre>
<h2>Experiment</h2><pre>${escapeHtml(JSON.stringify(input.experiment, null, 2))}</pre>`,
  );
}

/** What one compares runs by; everything else is at the end of the page. */
function settingsLine({ backend, schedule, algorithm }: Experiment): string {
  return [
    `${backend.kind} backend`,
    ...("model" in backend ? [`model ${backend.model}`] : []),
    `${schedule.kind}, ${schedule.steps} steps of ${schedule.groupsPerStep} x ${schedule.groupSize} rollouts`,
    `${algorithm.advantages.estimator}, ${algorithm.weighting.kind}, ${algorithm.loss.kind}`,
    `learning rate ${algorithm.learningRate} (decay: ${algorithm.learningRateSchedule.decay})`,
  ].join(" · ");
}

function cards(result: RunResult): string {
  const percent = (value: number | null): string =>
    value === null ? "–" : `${(100 * value).toFixed(1)} %`;
  const entries: [string, string][] = [
    ["pass@1 before", percent(result.passAt1.before)],
    ["pass@1 after", percent(result.passAt1.after)],
    ["steps", String(result.steps)],
    ["rollouts", String(result.rollouts.total)],
    ["calls", `${result.calls.captured} (+${result.calls.incomplete} incomplete)`],
    ["trained tokens", String(result.tokens)],
    ["wall time", `${result.wallSeconds.toFixed(0)} s`],
  ];
  const shown = entries.map(
    ([name, value]) =>
      `<div>${escapeHtml(name)}<br><span class="big">${escapeHtml(value)}</span></div>`,
  );
  return `<div class="cards">${shown.join("")}</div>`;
}

function stepTable(steps: readonly StepMetrics[]): string {
  const rows = steps.map((s) => [
    String(s.step),
    s.applied ? String(s.version) : `${s.version} (nothing to learn)`,
    s.reward === null ? "–" : s.reward.mean.toFixed(3),
    `${s.rollouts.trained}/${s.rollouts.total}`,
    String(s.samples),
    String(s.trainedTokens),
    s.staleness.mean.toFixed(2),
    s.logprobGap.meanAbs.toExponential(1),
    s.logprobGap.p99Abs.toExponential(1),
    s.logprobGap.kl.toExponential(1),
    s.meanRatio.toFixed(4),
    s.gradNorm.toPrecision(3),
    s.seconds.sampling.toFixed(1),
    s.seconds.update.toFixed(2),
  ]);
  return htmlTable(
    [
      "step",
      "version",
      "reward",
      "rollouts trained",
      "rows",
      "trained tokens",
      "staleness",
      "mean |Δ logprob|",
      "p99 |Δ logprob|",
      "KL estimate",
      "mean ratio",
      "grad norm",
      "sampling s",
      "update s",
    ],
    rows,
  );
}

function rolloutTable(rollouts: readonly StoredRollout[]): string {
  return htmlTable(
    ["rollout", "task", "purpose", "state", "end", "attempts", "reward", "note"],
    rollouts.map((r) => [
      r.rolloutId,
      shortened(JSON.stringify(r.input)),
      r.purpose,
      r.state,
      r.endReason ?? "–",
      String(r.rollout.attempts.length),
      r.reward === undefined ? "–" : String(r.reward),
      r.errorMessage ?? "",
    ]),
  );
}

function sampleRow({ rolloutId, reward, sample, texts }: SampleView): string {
  const tokens = Array.from(sample.tokenIds, (id, i) => {
    const isTrained = sample.lossMask[i] === 1;
    const text = texts?.[i] ?? `${id} `;
    const title = isTrained
      ? `${id} · logprob ${sample.samplingLogprobs[i]?.toFixed(4)} · version ${sample.policyVersions[i]}`
      : String(id);
    return `<span class="${isTrained ? "t" : "c"}" title="${title}">${escapeHtml(text)}</span>`;
  });
  const shown = reward === null ? "no reward" : `reward ${reward}`;
  return `<h3>${escapeHtml(rolloutId)} · ${shown}</h3><div class="row">${tokens.join("")}</div>`;
}

function shortened(text: string): string {
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}
