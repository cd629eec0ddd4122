import { expect, it } from "vitest";
import type { ModelConfig } from "../../model/model-config.ts";
import { randomWeights } from "../../model/random-weights.ts";
import { openTfjsCompute } from "./open-tfjs-compute.ts";

const config: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 11,
  hiddenSize: 8,
  intermediateSize: 12,
  layerCount: 1,
  headCount: 2,
  kvHeadCount: 1,
  headDim: 4,
  maxSequenceLength: 16,
  ropeTheta: 10_000,
  rmsNormEpsilon: 1e-6,
  tieWordEmbeddings: true,
  hasQkvBias: true,
};

it("leaves no tensor behind, whatever it is asked and however that ends", async () => {
  const { default: tf } = await import("@tensorflow/tfjs");
  const atStart = tf.memory().numTensors;
  const compute = await openTfjsCompute(config, randomWeights(config, { seed: 1 }), {
    backend: "js",
  });
  const rows = [Int32Array.of(1, 2, 3), Int32Array.of(4, 5)];
  const ones = (lp: readonly Float32Array[]) => lp.map((r) => new Float32Array(r.length).fill(1));
  const decode = await compute.openDecode({ slots: 2, maxLength: 8 });
  const round = async (): Promise<void> => {
    await compute.logprobs(rows, 1);
    await compute.backward(rows, 1, ones);
    await expect(compute.backward(rows, 1, () => [])).rejects.toThrow(/one value per token/);
    await decode.extend([{ slot: 0, tokenIds: Int32Array.of(1, 2) }]);
    decode.truncate(0, 1);
  };
  await round();
  const before = tf.memory().numTensors;
  await round();
  await round();
  expect(tf.memory().numTensors).toBe(before);
  await compute.step({ learningRate: 1, beta1: 0.9, beta2: 0.9, epsilon: 1, weightDecay: 0 });
  await round();
  expect(tf.memory().numTensors).toBe(before);
  await compute.close();
  expect(tf.memory().numTensors).toBe(atStart);
});
