import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { experimentDifferences, keepExperiment } from "./keep-experiment.ts";
import { type Experiment, loadExperiment } from "./load-experiment.ts";

const directory = mkdtempSync(join(tmpdir(), "outrigger-keep-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const path = join(import.meta.dirname, "../../examples/calculator/experiment.yaml");
const began = loadExperiment(path, { steps: 2 });
type Change = (experiment: Experiment) => Partial<Experiment>;

describe("a resumed run keeps its experiment", () => {
  it.each<[string, Change]>([
    ["algorithm.learningRate", (e) => ({ algorithm: { ...e.algorithm, learningRate: 0.5 } })],
    ["schedule.groupSize", (e) => ({ schedule: { ...e.schedule, groupSize: 3 } })],
    ["name", () => ({ name: "other" })],
    ["seed", () => ({ seedOfFile: 77 })],
    ["backend.model", (e) => ({ backend: { ...e.backend, model: "/elsewhere/policy" } })],
    ["sampling.train.topP", (e) => ({ sampling: { ...e.sampling, train: { topP: 1 } } })],
  ])("a changed %s is refused by its path, and what is kept stays", (name, change) => {
    keepExperiment(directory, began);
    const before = readFileSync(join(directory, "experiment.json"), "utf8");
    const changed = { ...began, ...change(began) };
    expect(() => keepExperiment(directory, changed)).toThrow(`\n  ${name}: `);
    expect(readFileSync(join(directory, "experiment.json"), "utf8")).toBe(before);
  });

  it.each<[string, Change]>([
    ["more steps", (e) => ({ schedule: { ...e.schedule, steps: 9 } })],
    [
      "concurrency and time-out",
      (e) => ({ harness: { ...e.harness, concurrency: 2, timeoutMs: 5_000 } }),
    ],
    ["a limit", (e) => ({ limits: { ...e.limits, maxInfraErrorFraction: 1 } })],
    ["the evaluation", (e) => ({ evaluation: { ...e.evaluation, count: 3, everySteps: 1 } })],
  ])("%s may change, and experiment.json says so", (_, change) => {
    keepExperiment(directory, began);
    const changed = { ...began, ...change(began) };
    keepExperiment(directory, changed);
    const kept = JSON.parse(readFileSync(join(directory, "experiment.json"), "utf8")) as Experiment;
    expect(kept).toEqual(JSON.parse(JSON.stringify(changed)));
  });

  it("the folder of the experiment may be moved", () => {
    const moved = JSON.parse(
      JSON.stringify(began).replaceAll(join(import.meta.dirname, "../../examples"), "/moved"),
    ) as Experiment;
    expect(moved.file).toBe("/moved/calculator/experiment.yaml");
    expect(experimentDifferences(JSON.parse(JSON.stringify(began)), moved)).toEqual([]);
  });

  it("a secret in the environment is not repeated", () => {
    const harness = { ...began.harness, environment: { KEY: "sk-1" } };
    const lines = experimentDifferences(
      { ...began, harness },
      {
        ...began,
        harness: { ...harness, environment: { KEY: "sk-2" } },
      },
    );
    expect(lines).toEqual(["harness.environment.KEY: changed"]);
  });
});
