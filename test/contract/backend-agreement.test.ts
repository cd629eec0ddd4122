import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readSafetensors } from "../../backends/native/model/safetensors.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { TrainerBackend, UpdateResult, UpdateSettings } from "../../core/trainer-backend.ts";
import { updateSettings } from "./trainer-backend.ts";
import { type NativeUnderTest, openNativeUnderTest } from "./trainer-backend-native.ts";
import { samplePolicy } from "./trainer-backend-policy.ts";
import { openTinkerUnderTest, type TinkerUnderTest } from "./trainer-backend-tinker.ts";

/** As in examples/calculator, but with steps that show in float32. */
const settings: UpdateSettings = { ...updateSettings, beta2: 0.99, weightDecay: 0 };

/**
 * Off-policy rows: the logprobs are shifted, some beyond the clip bounds, and weights and
 * advantages differ per row; one row has a token that is not trained among those that are.
 */
function offPolicy(sample: TrainingSample, index: number): TrainingSample {
  const advantage = [1.25, -0.75, 0.4, -1.1][index] as number;
  const shift = [0, 0.05, -0.3, 0.4];
  const isTrained = (t: number): boolean => sample.lossMask[t] === 1;
  return {
    ...sample,
    samplingLogprobs: sample.samplingLogprobs.map((v, t) =>
      isTrained(t) ? Math.min(0, v + (shift[(t + index) % 4] as number)) : v,
    ),
    advantages: sample.advantages.map((_, t) => (isTrained(t) ? advantage : 0)),
    weights: sample.weights.map((w, t) => (index === 2 && t % 5 === 0 ? 0 : w / (1 + index))),
  };
}

async function sampleRows(backend: TrainerBackend, step: number): Promise<TrainingSample[]> {
  const [endpoint] = await backend.policyEndpoints();
  const rows: TrainingSample[] = [];
  for (let i = 0; i < 4; i++) {
    const options = { advantage: 0, maxTokens: 6 + 5 * i, seed: 10 * step + i };
    rows.push(offPolicy((await samplePolicy(endpoint!, `row ${i}`, options)).sample, i));
  }
  return rows;
}

/** The largest difference of two sets of tensors, in parts of the largest value of its tensor. */
async function largestDifference(a: string, b: string): Promise<number> {
  const [one, other] = [await readSafetensors(a), await readSafetensors(b)];
  expect([...one.tensors.keys()].sort()).toEqual([...other.tensors.keys()].sort());
  let largest = 0;
  for (const [name, { data }] of one.tensors) {
    const wanted = other.tensors.get(name)!.data;
    const scale = data.reduce((max, v) => Math.max(max, Math.abs(v)), 1e-30);
    data.forEach((v, i) => {
      largest = Math.max(largest, Math.abs(v - wanted[i]!) / scale);
    });
  }
  return largest;
}

let native: NativeUnderTest;
let tinker: TinkerUnderTest;
beforeAll(async () => {
  [native, tinker] = await Promise.all([openNativeUnderTest(), openTinkerUnderTest()]);
});
afterAll(async () => {
  await native.close();
  await tinker.close();
});

describe("native and tinker make the same update of the same samples", () => {
  const none = { correction: { kind: "none" }, klCoefficient: 0 } as const;
  const ppo = { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 } as const;
  const algorithms: readonly Pick<UpdateSettings, "loss" | "correction" | "klCoefficient">[] = [
    { ...none, loss: ppo },
    { ...none, loss: { kind: "cispo", clipLow: 0, clipHigh: 1.3 } },
    { ...none, loss: { kind: "importance-sampling" } },
    { ...none, loss: { kind: "gspo", clipLow: 0.99, clipHigh: 1.01 } },
    { ...none, loss: { ...ppo, dualClip: 1.3 } },
    { ...none, loss: ppo, correction: { kind: "truncate", level: "token", max: 1.1 } },
    { ...none, loss: ppo, correction: { kind: "truncate", level: "sequence", max: 1.1 } },
    { ...none, loss: ppo, correction: { kind: "mask", level: "token", min: 0.8, max: 1.2 } },
    { ...none, loss: ppo, correction: { kind: "mask", level: "sequence", min: 0.65, max: 2 } },
    { ...none, loss: ppo, klCoefficient: 0.1 },
  ];

  it("weights and moments after a step of each algorithm, to float32 rounding", async () => {
    const results: UpdateResult[][] = [];
    for (const [version, algorithm] of algorithms.entries()) {
      const samples = await sampleRows(native.backend, version);
      const request = {
        updateId: `u${version}`,
        fromVersion: version,
        settings: { ...settings, ...algorithm, ...(version > 5 ? { maxGradNorm: 1e-2 } : {}) },
        samples,
      };
      results.push([await native.backend.update(request), await tinker.backend.update(request)]);
    }
    for (const [one, other] of results) {
      expect(other!.trainedTokenCount).toBe(one!.trainedTokenCount);
      expect(other!.clippedFraction).toBe(one!.clippedFraction);
      expect(other!.loss).toBeCloseTo(one!.loss, 5);
      expect(other!.gradNorm / one!.gradNorm).toBeCloseTo(1, 4);
      expect(other!.logprobGap.meanAbs).toBeCloseTo(one!.logprobGap.meanAbs, 5);
      for (const [name, value] of Object.entries(one!.metrics)) {
        expect(other!.metrics[name], name).toBeCloseTo(value, 5);
      }
    }
    // Each case is one: tokens were clipped, masked, and far from the reference.
    const clipped = results.map(([one]) => one!.clippedFraction > 0);
    expect(clipped.slice(0, 5)).toEqual([true, true, false, true, true]);
    const masked = results.map(([one]) => one!.metrics["correction/masked_fraction"]! > 0);
    expect(masked.slice(7, 9)).toEqual([true, true]);
    expect(results.at(-1)![0]!.metrics["reference/kl"]).toBeGreaterThan(0);
    const state = join(native.directory, "state", "current");
    const saved = await tinker.statePath();
    // Adam makes steps of the full size also of gradients that are little but rounding; what is
    // wrong by more than that shows a hundred times as large.
    const file = "model.safetensors";
    expect(await largestDifference(join(state, file), join(saved, file))).toBeLessThan(1e-4);
    const moments = "optimizer.safetensors";
    expect(await largestDifference(join(state, moments), join(saved, moments))).toBeLessThan(1e-3);
  });

  it("the policies that they serve then sample the same", async () => {
    const options = { advantage: 0, maxTokens: 20, temperature: 0 };
    const [one] = await native.backend.policyEndpoints();
    const [other] = await tinker.backend.policyEndpoints();
    expect(other?.version).toBe(one?.version);
    const a = await samplePolicy(one!, "the same", options);
    const b = await samplePolicy(other!, "the same", options);
    expect(b.sample.tokenIds).toEqual(a.sample.tokenIds);
    const start = a.sample.lossMask.indexOf(1);
    for (let t = start; t < a.sample.tokenIds.length; t++) {
      expect(b.sample.samplingLogprobs[t]).toBeCloseTo(a.sample.samplingLogprobs[t]!, 4);
    }
  });
});
