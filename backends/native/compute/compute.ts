import type { ModelConfig } from "../model/model-config.ts";
import type { NamedWeights } from "../model/named-weights.ts";

export interface ComputeDescription {
  /** "onnxruntime-node" or the TensorFlow.js back end, with its version. */
  readonly library: string;
  readonly version: string;
  /** "cpu", "webgpu", "cuda", "wasm", "js" … as asserted, not as asked for. */
  readonly device: string;
  readonly threads?: number;
}

export interface AdamWSettings {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  readonly maxGradNorm?: number;
}

/** Weights and AdamW moments under Hugging Face parameter names, float32. */
export interface OptimizerState {
  readonly stepCount: number;
  readonly firstMoments: NamedWeights;
  readonly secondMoments: NamedWeights;
}

/** A batch of KV caches. One cache slot holds one sequence. */
export interface DecodeSession {
  /**
   * Appends tokens to sequences (many: prefill, one: a decode step) and gives for each the logits
   * [vocabSize] that follow its last token. A slot may appear once per call. New slots start empty.
   * The returned arrays are valid until the next call.
   */
  extend(
    items: readonly { readonly slot: number; readonly tokenIds: Int32Array }[],
  ): Promise<readonly Float32Array[]>;
  /** Cuts a sequence back to its first `length` tokens; 0 frees the slot. */
  truncate(slot: number, length: number): void;
  /** Tokens now in the slot. */
  lengthOf(slot: number): number;
  close(): void;
}

/**
 * What the native backend calculates with. Two implementations (`ort`, `tfjs`) pass
 * `test/contract/compute.test.ts`. Rows are ragged; an implementation pads and buckets as it likes
 * and padding never changes a result. Not re-entrant: callers serialise calls of the trainer part;
 * decode sessions see the weights as of the last `setWeights`/`step`, at their next `extend`.
 */
export interface Compute {
  readonly description: ComputeDescription;
  readonly config: ModelConfig;
  /**
   * Per-token logprobs: result[r][t] = log p(rows[r][t] | rows[r][<t]) of softmax(logits /
   * temperature), float32; entry 0 of each row is NaN (nothing predicts it).
   */
  logprobs(rows: readonly Int32Array[], temperature: number): Promise<Float32Array[]>;
  /**
   * Adds to the gradient accumulator d(Σ_r Σ_t g[r][t] · logprob[r][t]) / d weights, where
   * `gradientOf` is called once with the logprobs of these rows and returns g (same shapes; entry
   * 0 of each row is ignored). One forward and one backward pass.
   */
  backward(
    rows: readonly Int32Array[],
    temperature: number,
    gradientOf: (logprobs: readonly Float32Array[]) => readonly Float32Array[],
  ): Promise<void>;
  /** Global L2 norm of the accumulated gradient; clips, applies AdamW, clears the accumulator. */
  step(settings: AdamWSettings): Promise<{ readonly gradNorm: number }>;
  /** Copy of the accumulated gradient, for tests and checks. */
  gradients(): Promise<NamedWeights>;
  clearGradients(): void;
  weights(): Promise<NamedWeights>;
  setWeights(weights: NamedWeights): Promise<void>;
  optimizerState(): Promise<OptimizerState>;
  setOptimizerState(state: OptimizerState): Promise<void>;
  openDecode(options: {
    readonly slots: number;
    readonly maxLength: number;
  }): Promise<DecodeSession>;
  close(): Promise<void>;
}
