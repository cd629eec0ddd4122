import { describe, expect, it } from "vitest";
import type { ModelConfig } from "./model-config.ts";
import { randomWeights } from "./random-weights.ts";

const config: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 50,
  hiddenSize: 32,
  intermediateSize: 48,
  layerCount: 2,
  headCount: 4,
  kvHeadCount: 2,
  headDim: 8,
  maxSequenceLength: 64,
  ropeTheta: 10_000,
  rmsNormEpsilon: 1e-6,
  tieWordEmbeddings: false,
  hasQkvBias: true,
};

describe("randomWeights", () => {
  it("gives the same weights for a seed, others for another", () => {
    expect(randomWeights(config, { seed: 3 })).toEqual(randomWeights(config, { seed: 3 }));
    const head = (seed: number) => randomWeights(config, { seed }).get("lm_head.weight")?.data;
    expect(head(3)).not.toEqual(head(4));
  });

  it("draws matrices with the asked deviation, starts norms at 1 and biases at 0", () => {
    const weights = randomWeights(config, { seed: 1, standardDeviation: 0.1 });
    const matrix = weights.get("model.embed_tokens.weight")?.data ?? new Float32Array();
    const mean = matrix.reduce((a, b) => a + b, 0) / matrix.length;
    const deviation = Math.sqrt(matrix.reduce((a, b) => a + (b - mean) ** 2, 0) / matrix.length);
    expect(Math.abs(mean)).toBeLessThan(0.01);
    expect(deviation).toBeGreaterThan(0.094);
    expect(deviation).toBeLessThan(0.106);
    expect(weights.get("model.norm.weight")?.data.every((w) => w === 1)).toBe(true);
    const bias = weights.get("model.layers.1.self_attn.k_proj.bias");
    expect(bias?.shape).toEqual([16]);
    expect(bias?.data.every((w) => w === 0)).toBe(true);
  });
});
