/** One array of a datum as JSON: `{data, dtype, shape}`; one value per position. */
export interface TensorData {
  readonly data: readonly number[];
  readonly dtype: "int64" | "float32";
  readonly shape: readonly number[];
}

/**
 * One row. `target_tokens[i]` is the token after `model_input`'s token i, so every array has the
 * row's length less one. Example, tokens [1,2,3,4] of which 3 and 4 are trained:
 * `model_input` [1,2,3], `target_tokens` [2,3,4], `advantages` [0,a,a], `logprobs` [0,-0.5,-0.1].
 */
export interface Datum {
  readonly model_input: {
    readonly chunks: readonly {
      readonly type: "encoded_text";
      readonly tokens: readonly number[];
    }[];
  };
  readonly loss_fn_inputs: Readonly<Record<string, TensorData>>;
}

export interface ForwardBackwardInput {
  readonly data: readonly Datum[];
  readonly loss_fn: "cross_entropy" | "importance_sampling" | "ppo" | "cispo";
  readonly loss_fn_config?: Readonly<Record<string, number>>;
}

export interface AdamParams {
  readonly learning_rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weight_decay: number;
  /** 0: no clipping. */
  readonly grad_clip_norm: number;
}

export interface SampledSequence {
  readonly stop_reason: "stop" | "length";
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}
