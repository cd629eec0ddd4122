import { expect, it } from "vitest";
import type { RunResult } from "./build-result.ts";
import { compareRuns, differingSettings } from "./compare-runs.ts";
import { comparisonHtml } from "./comparison-html.ts";
import type { RecordedRun } from "./read-run.ts";

it("names the settings that are not the same in all runs, by path", () => {
  const one = { seed: 1, backend: { kind: "native", flags: [] }, algorithm: { beta2: 0.99 } };
  const other = {
    seed: 1,
    backend: { kind: "tinker", flags: [], loraRank: 32 },
    algorithm: { beta2: 0.99 },
  };
  expect(differingSettings([one, other])).toEqual([
    { path: "backend.kind", values: ["native", "tinker"] },
    { path: "backend.loraRank", values: [null, 32] },
  ]);
  expect(differingSettings([one, structuredClone(one)])).toEqual([]);
  expect(differingSettings([{ a: [1, 2] }, { a: [1, 3] }])).toEqual([
    {
      path: "a",
      values: [
        [1, 2],
        [1, 3],
      ],
    },
  ]);
});

function run(kind: string, directory: string, before: number | null): RecordedRun {
  const result = {
    name: "<toy>",
    runId: kind,
    state: "done",
    passAt1: { before, after: 0.9 },
    evaluations: [{ step: 0, passAt1: 0.25 }],
    steps: 1,
    rollouts: { total: 8 },
    calls: { captured: 16, incomplete: 0 },
    tokens: 100,
    logprobGap: null,
    wallSeconds: 12.34,
    compute: "here",
  } as unknown as RunResult;
  return { directory, result, steps: [], settings: { backend: { kind } } };
}

it("has one value per run for each fact; what is missing is null, never 0", () => {
  const comparison = compareRuns([run("native", "/a", 0.25), run("tinker", "/b", null)]);
  expect(comparison.runs.map(({ label }) => label)).toEqual(["native", "tinker"]);
  const fact = (name: string) => comparison.facts.find((one) => one.name === name)?.values;
  expect(fact("pass@1 gained")).toEqual([0.65, null]);
  expect(fact("mean |Δ logprob|")).toEqual([null, null]);
  const html = comparisonHtml(comparison, ["<svg>chart</svg>"]);
  expect(html).toContain("<svg>chart</svg>");
  expect(html).toContain("&lt;toy&gt;");
  expect(html).toContain("<td>backend.kind</td><td>native</td><td>tinker</td>");
});

it("tells runs of one backend apart by their directories", () => {
  const { runs } = compareRuns([run("native", "/runs/toy-1", 0), run("native", "/runs/toy-2", 0)]);
  expect(runs.map(({ label }) => label)).toEqual(["toy-1", "toy-2"]);
});
