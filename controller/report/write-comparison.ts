import { join } from "node:path";
import { writeAtomically } from "../run-directory.ts";
import type { Point, RunComparison } from "./compare-runs.ts";
import { comparisonHtml } from "./comparison-html.ts";
import type { ChartSpec } from "./draw-chart.ts";

/** Writes `comparison.json` and a self-contained `comparison.html`; gives the latter's path. */
export async function writeComparison(
  directory: string,
  comparison: RunComparison,
): Promise<string> {
  const json = `${JSON.stringify(comparison, null, 2)}\n`;
  writeAtomically(join(directory, "comparison.json"), json);
  const { drawChart } = await import("./draw-chart.ts");
  const html = comparisonHtml(comparison, chartSpecs(comparison).map(drawChart));
  const file = join(directory, "comparison.html");
  writeAtomically(file, html);
  return file;
}

function chartSpecs(comparison: RunComparison): ChartSpec[] {
  const { runs } = comparison;
  const lines = (curves: readonly (readonly Point[])[], isScatter = false) =>
    curves.map((points, i) => ({ name: runs[i]?.label ?? String(i), points, isScatter }));
  const xName = "step";
  return [
    {
      title: "Training reward",
      xName,
      yName: "mean reward",
      lines: lines(comparison.rewardCurves),
    },
    { title: "Held-out pass@1", xName, yName: "pass@1", lines: lines(comparison.passCurves, true) },
    { title: "Gradient norm", xName, yName: "norm", lines: lines(comparison.gradNormCurves) },
    {
      title: "Sampler against trainer",
      xName,
      yName: "mean |Δ logprob|",
      isLogY: true,
      lines: lines(comparison.gapCurves),
    },
  ];
}
