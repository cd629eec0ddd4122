import type { ModelConfig } from "./model-config.ts";
import type { NamedWeights, Tensor } from "./named-weights.ts";
import { parameterShapes } from "./parameter-shapes.ts";

/** Uniform in [0, 1), from 32 bits of state (mulberry32); the same on every machine. */
function uniformSource(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function normalSource(uniform: () => number): () => number {
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

export interface RandomWeightsOptions {
  readonly seed: number;
  /** Standard deviation of matrices; 0.02 as in Hugging Face's `initializer_range`. */
  readonly standardDeviation?: number;
  /** Also moves norms off 1 and biases off 0 by this much, so that tests exercise them. */
  readonly jitter?: number;
}

/** Fresh weights: matrices normal, norms 1, biases 0. The same seed gives the same weights. */
export function randomWeights(config: ModelConfig, options: RandomWeightsOptions): NamedWeights {
  const normal = normalSource(uniformSource(options.seed));
  const deviation = options.standardDeviation ?? 0.02;
  const jitter = options.jitter ?? 0;
  const weights = new Map<string, Tensor>();
  for (const { name, shape } of parameterShapes(config)) {
    const data = new Float32Array(shape.reduce((size, n) => size * n, 1));
    const isMatrix = shape.length > 1;
    const centre = isMatrix || name.endsWith(".bias") ? 0 : 1;
    const spread = isMatrix ? deviation : jitter;
    for (let i = 0; i < data.length; i++) data[i] = centre + spread * normal();
    weights.set(name, { shape, data });
  }
  return weights;
}
