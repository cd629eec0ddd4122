import type { Sample } from "../../core/sample.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import type { StoredRollout } from "../store/rollout-store.ts";
import type { RunResult } from "./build-result.ts";

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
  /** The experiment as it ran, JSON text without secrets. */
  readonly configText: string;
}

const style = `
body{font:14px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1080px;padding:0 16px;color:#1c2330}
h1{font-size:22px}h2{font-size:17px;margin-top:32px}table{border-collapse:collapse;width:100%}
th,td{padding:3px 8px;border-bottom:1px solid #e3e7ee;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}.scroll{max-height:420px;overflow:auto}
.charts{display:flex;flex-wrap:wrap;gap:12px}.charts svg{max-width:100%;height:auto}
pre{background:#f5f7fa;padding:12px;overflow:auto}.row{font:12px/1.9 ui-monospace,monospace;word-break:break-all}
.row span{padding:2px 1px;border-radius:3px}.t{background:#cdeccd}.c{color:#6b7484}
.big{font-size:28px;font-weight:600}.cards{display:flex;gap:32px;flex-wrap:wrap}.cards div{min-width:120px}`;

/** One file that needs nothing else: curves, configuration, rollouts, samples with their masks. */
export function reportHtml(input: ReportInput): string {
  const { result } = input;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${escape(result.name)} · Outrigger</title>
<style>${style}</style></head><body>
<h1>${escape(result.name)}</h1>
<p>Run ${escape(result.runId)} · seed ${result.seed} · ${escape(result.compute)} · ${escape(result.state)}</p>
<p>${escape(settingsLine(input.configText))}</p>
${cards(result)}
<h2>Curves</h2><div class="charts">${input.charts.join("")}</div>
<h2>Steps</h2><div class="scroll">${stepTable(input.steps)}</div>
<h2>Samples</h2><p>Trained tokens have a green ground; hover for logprob and policy version.</p>
${input.samples.map(sampleRow).join("") || "<p>None.</p>"}
<h2>Rollouts</h2><div class="scroll">${rolloutTable(input.rollouts)}</div>
<h2>Result</h2><pre>${escape(JSON.stringify(result, null, 2))}</pre>
<h2>Experiment</h2><pre>${escape(input.configText)}</pre>
</body></html>
`;
}

/** What one compares runs by; everything else is at the end of the page. */
function settingsLine(configText: string): string {
  const { backend, schedule, algorithm } = JSON.parse(configText) as Pick<
    Experiment,
    "backend" | "schedule" | "algorithm"
  >;
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
    ([name, value]) => `<div>${escape(name)}<br><span class="big">${escape(value)}</span></div>`,
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
  return table(
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
  return table(
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
    return `<span class="${isTrained ? "t" : "c"}" title="${title}">${escape(text)}</span>`;
  });
  const shown = reward === null ? "no reward" : `reward ${reward}`;
  return `<h3>${escape(rolloutId)} · ${shown}</h3><div class="row">${tokens.join("")}</div>`;
}

function shortened(text: string): string {
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = (tag: string, values: readonly string[]): string =>
    `<tr>${values.map((value) => `<${tag}>${escape(value)}</${tag}>`).join("")}</tr>`;
  return `<table>${cells("th", head)}${rows.map((row) => cells("td", row)).join("")}</table>`;
}

function escape(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
