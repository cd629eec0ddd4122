import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import { randomWeights } from "../model/random-weights.ts";
import type { Compute } from "./compute.ts";

const config: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 61,
  hiddenSize: 32,
  intermediateSize: 48,
  layerCount: 2,
  headCount: 4,
  kvHeadCount: 2,
  headDim: 8,
  maxSequenceLength: 64,
  ropeTheta: 10_000,
  rmsNormEpsilon: 1e-6,
  tieWordEmbeddings: true,
  hasQkvBias: true,
};

/** Loose enough for reduced-precision products (TF32), tight enough to catch a wrong kernel. */
const tolerance = 0.02;

interface Probe {
  readonly logprobs: Float32Array;
  readonly gradNorm: number;
}

async function probe(compute: Compute): Promise<Probe> {
  const rows = [Int32Array.from({ length: 40 }, (_, t) => (t * t + 7 * t) % config.vocabSize)];
  const [logprobs] = await compute.logprobs(rows, 1);
  await compute.backward(rows, 1, (lp) => lp.map((row) => new Float32Array(row.length).fill(0.1)));
  const { gradNorm } = await compute.step({
    learningRate: 0,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weightDecay: 0,
  });
  return { logprobs: logprobs ?? new Float32Array(), gradNorm };
}

export type OpenOn = (config: ModelConfig, weights: NamedWeights) => Promise<Compute>;

async function runProbe(open: OpenOn, weights: NamedWeights): Promise<Probe> {
  const compute = await open(config, weights);
  try {
    return await probe(compute);
  } finally {
    await compute.close();
  }
}

/**
 * Throws `compute-wrong` unless a device gives the logprobs and the gradient norm of the CPU on a
 * tiny model: a driver that computes nonsense must not train a policy.
 */
export async function checkDevice(name: string, device: OpenOn, cpu: OpenOn): Promise<void> {
  const weights = randomWeights(config, { seed: 1, standardDeviation: 0.2, jitter: 0.1 });
  const expected = await runProbe(cpu, weights);
  const actual = await runProbe(device, weights);
  const isEqual =
    expected.logprobs.every(
      (value, t) => t === 0 || Math.abs(value - (actual.logprobs[t] ?? Number.NaN)) <= tolerance,
    ) && Math.abs(actual.gradNorm / expected.gradNorm - 1) <= tolerance;
  if (isEqual) return;
  throw new OutriggerError("compute-wrong", `${name} disagrees with the CPU on a test model`, {
    origin: "backend",
    hint: "Update the GPU's driver, or choose --compute ort-cpu.",
  });
}
