import { describe, expect, it } from "vitest";
import { experimentSchema } from "../experiment/experiment-schema.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import { trainingSettingsOf, updateSettingsOf } from "./experiment-settings.ts";

function experimentWith(algorithm: Readonly<Record<string, unknown>>): Experiment {
  return experimentSchema.parse({
    name: "x",
    tasks: { train: { file: "tasks.jsonl" } },
    harness: { command: ["node", "harness.mjs"] },
    reward: { fromEvents: "sum" },
    backend: { kind: "native", model: "policy" },
    algorithm,
  }) as Experiment;
}

describe("trainingSettingsOf", () => {
  it.each([
    { estimator: "grpo" },
    { estimator: "dr-grpo", credit: { kind: "per-turn", discount: 0.9 } },
    { estimator: "rloo", credit: { kind: "outcome" } },
    { estimator: "reinforce-plus-plus", credit: { kind: "per-turn", discount: 0.5 } },
    { estimator: "reinforce-plus-plus-baseline" },
    { estimator: "gigpo", discount: 0.95, stepWeight: 0.5, normalises: false },
    { estimator: "trl-grpo" },
    { estimator: "trl-grpo-batch-std" },
    { estimator: "verl-grpo", epsilon: 1e-5 },
    { estimator: "verl-grpo-no-std" },
    { estimator: "verl-rloo" },
    { estimator: "verl-reinforce-plus-plus", gamma: 0.99 },
    { estimator: "verl-reinforce-plus-plus-baseline" },
  ])("gives $estimator as the file says it", (advantages) => {
    expect(trainingSettingsOf(experimentWith({ advantages })).advantages).toEqual(advantages);
  });

  it.each([
    { kind: "rollout-mean" },
    { kind: "token-mean" },
    { kind: "call-mean" },
    { kind: "constant-norm", normTokens: 64 },
    { kind: "verl-seq-mean-token-sum-norm", normTokens: 64 },
    { kind: "trl-dr-grpo", normTokens: 64 },
    { kind: "agl-per-rollout-mean" },
  ])("weighs by $kind", (weighting) => {
    expect(trainingSettingsOf(experimentWith({ weighting })).weighting).toEqual(weighting);
  });

  it("filters groups without signal only when asked", () => {
    expect(trainingSettingsOf(experimentWith({})).dropsZeroSignalGroups).toBe(false);
    const filtered = experimentWith({ dropsZeroSignalGroups: true });
    expect(trainingSettingsOf(filtered).dropsZeroSignalGroups).toBe(true);
  });
});

describe("updateSettingsOf", () => {
  it.each([
    { kind: "ppo", clipLow: 0.8, clipHigh: 1.28, dualClip: 3 },
    { kind: "gspo", clipLow: 0.9997, clipHigh: 1.0004 },
    { kind: "cispo", clipLow: 0, clipHigh: 5 },
    { kind: "importance-sampling" },
  ])("has the loss $kind", (loss) => {
    expect(updateSettingsOf(experimentWith({ loss }), 0).loss).toEqual(loss);
  });

  it.each([
    { kind: "none" },
    { kind: "truncate", level: "token", max: 2 },
    { kind: "truncate", level: "sequence", max: 3 },
    { kind: "mask", level: "sequence", min: 0.5, max: 2 },
  ])("has the correction $kind", (correction) => {
    expect(updateSettingsOf(experimentWith({ correction }), 0).correction).toEqual(correction);
  });

  it("leaves an unset dual clip out", () => {
    expect(updateSettingsOf(experimentWith({}), 0).loss).not.toHaveProperty("dualClip");
  });

  it("lets the learning rate follow its schedule, the settings of a step being always the same", () => {
    const experiment = experimentWith({
      learningRate: 0.5,
      learningRateSchedule: { decay: "linear", decaySteps: 1 },
    });
    const last = experiment.schedule.steps - 1;
    const rates = [0, last - 1, last].map((i) => updateSettingsOf(experiment, i).learningRate);
    expect(rates).toEqual([0.5, 0.5, 0.25]);
  });
});
