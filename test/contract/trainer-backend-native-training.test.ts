import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Compute } from "../../backends/native/compute/compute.ts";
import { selectCompute } from "../../backends/native/compute/select-compute.ts";
import { parseModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";
import { randomStream } from "../../backends/native/serving/random-stream.ts";
import { accumulateUpdate } from "../../backends/native/training/accumulate-update.ts";
import { supervisedStep } from "../../backends/native/training/supervised-step.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import { updateSettings } from "./trainer-backend.ts";
import { openNativeUnderTest } from "./trainer-backend-native.ts";
import { samplePolicy } from "./trainer-backend-policy.ts";

const config = parseModelConfig(
  {
    model_type: "llama",
    vocab_size: 40,
    hidden_size: 16,
    intermediate_size: 32,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    max_position_embeddings: 64,
    rms_norm_eps: 1e-5,
  },
  "test",
);

let compute: Compute;
let reference: Compute;

beforeAll(async () => {
  const weights = randomWeights(config, { seed: 1, standardDeviation: 0.3, jitter: 0.1 });
  ({ compute } = await selectCompute("ort-cpu", config, weights, { threads: 1 }));
  const frozen = randomWeights(config, { seed: 2, standardDeviation: 0.3, jitter: 0.1 });
  ({ compute: reference } = await selectCompute("ort-cpu", config, frozen, { threads: 1 }));
});
afterAll(async () => {
  await compute.close();
  await reference.close();
});

/** A random row with two responses, whose sampling logprobs are off the policy's by a little. */
async function randomSample(seed: number, length: number): Promise<TrainingSample> {
  const random = randomStream("sample", seed);
  const tokenIds = Int32Array.from({ length }, () => Math.floor(random() * config.vocabSize));
  const lossMask = Uint8Array.from({ length }, (_, t) => (t > 1 && t % 5 !== 0 ? 1 : 0));
  const own = (await compute.logprobs([tokenIds], 1))[0]!;
  return {
    rolloutId: `r${seed}`,
    attemptId: "0",
    groupId: "g",
    tokenIds,
    lossMask,
    samplingLogprobs: own.map((v, t) =>
      lossMask[t] === 1 ? Math.min(0, v + (random() - 0.5) * 0.6) : Number.NaN,
    ),
    policyVersions: Int32Array.from(lossMask, (m) => (m === 1 ? 0 : -1)),
    advantages: Float32Array.from(lossMask, (m) => m * (random() - 0.5) * 4),
    weights: Float32Array.from(lossMask, (m) => m * random() * 0.1),
    callIds: [],
  };
}

/** The row in parts, each training one of its responses: as if the others were trained elsewhere. */
function split(sample: TrainingSample): TrainingSample[] {
  const parts: TrainingSample[] = [];
  for (let from = 0; from < sample.lossMask.length; from += 5) {
    const lossMask = sample.lossMask.map((m, t) => (t >= from && t < from + 5 ? m : 0));
    if (lossMask.includes(1)) parts.push({ ...sample, lossMask });
  }
  return parts;
}

interface Outcome {
  readonly loss: number;
  readonly gradient: NamedWeights;
}

async function outcomeOf(
  samples: readonly TrainingSample[],
  settings: UpdateSettings,
  tokenBudget: number,
): Promise<Outcome> {
  const { loss } = await accumulateUpdate(samples, { compute, reference, settings, tokenBudget });
  const gradient = await compute.gradients();
  compute.clearGradients();
  return { loss, gradient };
}

function expectEqual(actual: Outcome, wanted: Outcome): void {
  expect(Math.abs(actual.loss - wanted.loss)).toBeLessThan(1e-6);
  for (const [name, { data }] of wanted.gradient) {
    const scale = Math.max(1, ...data.map(Math.abs));
    const own = actual.gradient.get(name)!.data;
    let worst = 0;
    data.forEach((v, i) => {
      worst = Math.max(worst, Math.abs(v - own[i]!));
    });
    expect(worst / scale).toBeLessThan(1e-6);
  }
}

describe("training", () => {
  it.each<[string, Partial<UpdateSettings>]>([
    ["ppo with KL", { klCoefficient: 0.2 }],
    ["gspo", { loss: { kind: "gspo", clipLow: 0.95, clipHigh: 1.05 } }],
    [
      "cispo, masked",
      {
        loss: { kind: "cispo", clipLow: 0, clipHigh: 4 },
        correction: { kind: "mask", level: "token", min: 0.8, max: 1.2 },
      },
    ],
    [
      "importance sampling, truncated per response",
      {
        loss: { kind: "importance-sampling" },
        correction: { kind: "truncate", level: "sequence", max: 1.1 },
      },
    ],
  ])(
    "has one gradient for %s, whatever the order, micro-batch, padding or cut into rows",
    async (_what, change) => {
      const settings = { ...updateSettings, ...change };
      const samples = await Promise.all([5, 9, 17, 23, 12, 30].map((n, i) => randomSample(i, n)));
      const wanted = await outcomeOf(samples, settings, 1_000_000);
      expect(Math.abs(wanted.loss)).toBeGreaterThan(1e-3);
      expectEqual(await outcomeOf(samples, settings, 1), wanted);
      expectEqual(await outcomeOf(samples, settings, 40), wanted);
      expectEqual(await outcomeOf(samples.toReversed(), settings, 64), wanted);
      expectEqual(await outcomeOf(samples.flatMap(split), settings, 64), wanted);
    },
  );

  it("clears the gradient when it is aborted between micro-batches", async () => {
    const samples = [await randomSample(1, 20), await randomSample(2, 20)];
    const abort = new AbortController();
    const running = accumulateUpdate(samples, {
      compute,
      settings: updateSettings,
      tokenBudget: 1,
      signal: abort.signal,
      onProgress: () => abort.abort(new Error("enough")),
    });
    await expect(running).rejects.toThrow("enough");
    for (const { data } of (await compute.gradients()).values()) {
      expect(data.every((v) => v === 0)).toBe(true);
    }
  });

  it("learns masked tokens by supervised steps", async () => {
    const weights = randomWeights(config, { seed: 5 });
    const { compute: pupil } = await selectCompute("ort-cpu", config, weights, { threads: 1 });
    const tokenIds = Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8);
    const rows = [4, 8].map((n) => ({
      tokenIds: tokenIds.slice(0, n),
      lossMask: Uint8Array.of(1, 0, 1, 1, 1, 1, 1, 1).slice(0, n),
    }));
    const settings = { learningRate: 0.02, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0 };
    const first = await supervisedStep(pupil, rows, settings);
    // A fresh model of 0.02-sized weights is close to uniform over the vocabulary.
    expect(first.loss).toBeCloseTo(Math.log(config.vocabSize), 1);
    expect(first.tokenCount).toBe(8);
    let last = first;
    for (let i = 0; i < 40; i++) last = await supervisedStep(pupil, rows, settings);
    expect(last.loss).toBeLessThan(0.1);
    await pupil.close();
  });
});

describe("an update while the policy is sampled", () => {
  it("gives each token its version, with the logprob that version has in the whole context", async () => {
    const native = await openNativeUnderTest();
    try {
      const [endpoint] = await native.backend.policyEndpoints();
      const options = { advantage: 1, maxTokens: 8, seed: 1 };
      const { sample } = await samplePolicy(endpoint!, "short", options);
      const long = samplePolicy(endpoint!, "long", { ...options, maxTokens: 480 });
      const update = { updateId: "u", fromVersion: 0, settings: updateSettings, samples: [sample] };
      await native.backend.update(update);
      const { sample: spanning, versions } = await long;
      expect(versions.map((v) => v.version)).toEqual([0, 1]);
      expect(versions[0]!.start).toBe(0);
      expect(versions[1]).toMatchObject({ start: versions[0]!.end, end: 480 });
      // Trained again with only the second span, it must look like its own sampler's.
      const start = spanning.lossMask.indexOf(1) + versions[1]!.start;
      const late = { ...spanning, lossMask: spanning.lossMask.map((m, t) => (t < start ? 0 : m)) };
      const result = await native.backend.update({
        ...update,
        updateId: "v",
        fromVersion: 1,
        samples: [late],
      });
      expect(result.trainedTokenCount).toBe(480 - versions[1]!.start);
      expect(result.logprobGap.meanAbs).toBeLessThan(1e-5);
    } finally {
      await native.close();
    }
  });

  it("changes nothing when an update is cancelled between micro-batches", async () => {
    const abort = new AbortController();
    const native = await openNativeUnderTest(
      { microBatchTokens: 1 },
      { onProgress: () => abort.abort(new Error("enough")) },
    );
    try {
      const [endpoint] = await native.backend.policyEndpoints();
      const samples = await Promise.all(
        Array.from({ length: 40 }, async (_, i) => {
          const options = { advantage: 1, maxTokens: 4, seed: i };
          return (await samplePolicy(endpoint!, "x", options)).sample;
        }),
      );
      const update = { updateId: "u", fromVersion: 0, settings: updateSettings, samples };
      await expect(native.backend.update(update, abort.signal)).rejects.toThrow("enough");
      expect((await native.backend.describe()).version).toBe(0);
      const result = await native.backend.update(update);
      expect(result).toMatchObject({ applied: true, version: 1, sampleCount: 40 });
      expect(result.logprobGap.meanAbs).toBeLessThan(1e-5);
    } finally {
      await native.close();
    }
  });
});
