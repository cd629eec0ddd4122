import { join } from "node:path";
import type { Sample } from "../../core/sample.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import { writeAtomically } from "../run-directory.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import type { StoredRollout } from "../store/rollout-store.ts";
import type { RunResult } from "./build-result.ts";
import type { ChartSpec } from "./draw-chart.ts";
import { reportHtml, type SampleView } from "./report-html.ts";

export interface ReportFacts {
  readonly result: RunResult;
  readonly steps: readonly StepMetrics[];
  readonly rollouts: readonly StoredRollout[];
  readonly samples: readonly { readonly sample: Sample; readonly reward: number | null }[];
  /** Text of token ids; absent where no tokenizer is at hand. */
  readonly decode?: (ids: readonly number[]) => string;
  /** As it ran. */
  readonly experiment: Experiment;
}

/** Writes `result.json`, `reward-curve.svg` and `report.html` into the run's directory. */
export async function writeReport(directory: string, facts: ReportFacts): Promise<void> {
  const { result, steps } = facts;
  writeAtomically(join(directory, "result.json"), `${JSON.stringify(result, null, 2)}\n`);
  // The chart library costs a third of a second to load; a run pays for it only here.
  const { drawChart } = await import("./draw-chart.ts");
  const charts = chartSpecs(result, steps).map(drawChart);
  writeAtomically(join(directory, "reward-curve.svg"), charts[0] as string);
  const html = reportHtml({ ...facts, charts, samples: facts.samples.map(toView(facts.decode)) });
  writeAtomically(join(directory, "report.html"), html);
}

function toView(
  decode: ReportFacts["decode"],
): (row: { readonly sample: Sample; readonly reward: number | null }) => SampleView {
  return ({ sample, reward }) => ({
    rolloutId: sample.rolloutId,
    reward,
    sample,
    ...(decode !== undefined && { texts: Array.from(sample.tokenIds, (id) => decode([id])) }),
  });
}

/** What a logarithmic axis can show. */
function positive(value: number): number | null {
  return value > 0 ? value : null;
}

function chartSpecs(result: RunResult, steps: readonly StepMetrics[]): ChartSpec[] {
  const line = (
    name: string,
    value: (step: StepMetrics) => number | null | undefined,
  ): { name: string; points: [number, number][] } => ({
    name,
    points: steps.flatMap((step) => {
      const y = value(step);
      return y === null || y === undefined || !Number.isFinite(y) ? [] : [[step.step, y]];
    }),
  });
  const passes = result.evaluations.flatMap(({ step, passAt1 }): [number, number][] =>
    passAt1 === null ? [] : [[step, passAt1]],
  );
  return [
    {
      title: "Reward",
      xName: "step",
      yName: "mean reward",
      lines: [
        line("training reward", (s) => s.reward?.mean),
        { name: "held-out pass@1", points: passes, isScatter: true },
      ],
    },
    {
      title: "Sampler against trainer",
      xName: "step",
      yName: "nats per token",
      isLogY: true,
      lines: [
        line("mean |Δ logprob|", (s) => positive(s.logprobGap.meanAbs)),
        line("99th percentile", (s) => positive(s.logprobGap.p99Abs)),
        line("max", (s) => positive(s.logprobGap.maxAbs)),
        line("KL estimate", (s) => positive(s.logprobGap.kl)),
      ],
    },
    {
      title: "Gradient norm",
      xName: "step",
      yName: "norm",
      lines: [line("gradient norm", (s) => (s.applied ? s.gradNorm : null))],
    },
    {
      title: "Staleness",
      xName: "step",
      yName: "versions",
      lines: [line("mean", (s) => s.staleness.mean), line("max", (s) => s.staleness.max)],
    },
  ];
}
