export interface Tensor {
  /** Row-major; Hugging Face layout, so a linear layer is [out, in]. */
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** Parameters by Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`. */
export type NamedWeights = ReadonlyMap<string, Tensor>;
