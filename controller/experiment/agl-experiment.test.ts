import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { stringify } from "yaml";
import { isAglExperiment, loadAnyExperiment, loadExperiment } from "./load-experiment.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-agl-experiment-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function write(value: unknown): string {
  const file = join(folder, "experiment.yaml");
  writeFileSync(file, stringify(value));
  return file;
}

const least = {
  name: "x",
  backend: { kind: "agl" },
  harness: { command: ["node", "./agent.mjs"], mayReward: true },
};

describe("an experiment that a trainer outside drives", () => {
  it("needs neither tasks nor a reward, and has its own type", () => {
    const experiment = loadAnyExperiment(write(least));
    expect(isAglExperiment(experiment)).toBe(true);
    expect(experiment.backend).toEqual({
      kind: "agl",
      host: "127.0.0.1",
      port: 8791,
      allowRemote: false,
    });
    expect(experiment.harness.command[1]).toBe(join(folder, "agent.mjs"));
  });

  it("is a native experiment with one field changed", () => {
    const native = {
      ...least,
      tasks: { train: { file: "t.jsonl" }, heldOut: { file: "h.jsonl" } },
      reward: { verifier: { command: ["node", "./verify.mjs"] } },
      backend: { kind: "native", model: "policy" },
    };
    const swapped = { ...native, backend: { kind: "agl" } };
    const { backend: _a, file: _b, ...one } = loadAnyExperiment(write(native));
    const { backend: _c, file: _d, ...other } = loadAnyExperiment(write(swapped));
    expect(isAglExperiment(loadAnyExperiment(write(native)))).toBe(false);
    expect({ ...other, evaluation: one.evaluation }).toEqual(one);
  });

  it("is checked all the same, and is none that this program trains", () => {
    expect(() => loadAnyExperiment(write({ ...least, harness: {} }))).toThrow(/harness\.command/);
    expect(() =>
      loadAnyExperiment(write({ ...least, backend: { kind: "agl", model: "" } })),
    ).toThrow(/backend\.model/);
    const quiet = { ...least, harness: { command: ["node"] } };
    expect(() => loadAnyExperiment(write(quiet))).toThrow(/mayReward/);
    expect(() => loadExperiment(write(least))).toThrow(/trained by Agent Lightning/);
  });
});
