import type { AdamWSettings, Compute } from "../../backends/native/compute/compute.ts";
import type { ModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";

const shared = {
  vocabSize: 37,
  hiddenSize: 24,
  intermediateSize: 40,
  layerCount: 2,
  headDim: 6,
  maxSequenceLength: 192,
  rmsNormEpsilon: 1e-6,
} as const;

/** Grouped queries, biases, tied head. */
export const qwenConfig: ModelConfig = {
  ...shared,
  architecture: "qwen2",
  headCount: 4,
  kvHeadCount: 2,
  ropeTheta: 1_000_000,
  tieWordEmbeddings: true,
  hasQkvBias: true,
};

/** One query per key, no biases, own head. */
export const llamaConfig: ModelConfig = {
  ...shared,
  architecture: "llama",
  headCount: 4,
  kvHeadCount: 4,
  ropeTheta: 10_000,
  tieWordEmbeddings: false,
  hasQkvBias: false,
};

export const fixtureWeights = (config: ModelConfig): NamedWeights =>
  randomWeights(config, { seed: 7, standardDeviation: 0.2, jitter: 0.1 });

/** Ragged rows of arbitrary but fixed tokens, some too short to predict anything. */
export const fixtureRows = (lengths: readonly number[]): Int32Array[] =>
  lengths.map((length, r) =>
    Int32Array.from({ length }, (_, t) => (t * 7 + r * 5 + ((t * t) % 11) + 3) % shared.vocabSize),
  );

/** A gradient with no symmetry: another value for every token. */
export const gradientAt = (row: number, token: number): number => Math.sin(3 * row + token) / 8;

export const fixtureGradient = (logprobs: readonly ArrayLike<number>[]): Float32Array[] =>
  logprobs.map((row, r) => Float32Array.from({ length: row.length }, (_, t) => gradientAt(r, t)));

export const adamW: AdamWSettings = {
  learningRate: 3e-3,
  beta1: 0.9,
  beta2: 0.95,
  epsilon: 1e-8,
  weightDecay: 0.1,
  maxGradNorm: 0.5,
};

/** The largest |a - b|; NaN where only one of the two is NaN. */
export function largestDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) return Number.NaN;
  let largest = 0;
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [a[i] as number, b[i] as number];
    if (Number.isNaN(x) && Number.isNaN(y)) continue;
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.NaN;
    largest = Math.max(largest, Math.abs(x - y));
  }
  return largest;
}

export const largestMagnitude = (a: ArrayLike<number>): number =>
  largestDifference(a, new Float64Array(a.length));

/** The largest difference of two sets of parameters, over the largest magnitude in `b`. */
export function relativeDifference(
  a: NamedWeights,
  b: ReadonlyMap<string, { readonly data: ArrayLike<number> }>,
): number {
  let difference = 0;
  let magnitude = 0;
  for (const [name, { data }] of b) {
    const other = a.get(name);
    difference = Math.max(difference, largestDifference(other?.data ?? [], data));
    magnitude = Math.max(magnitude, largestMagnitude(data));
  }
  return difference / magnitude;
}

export type OpenCompute = (
  config: ModelConfig,
  weights: NamedWeights,
  options?: { readonly maxBatchTokens?: number; readonly maxKeptFloats?: number },
) => Promise<Compute>;
