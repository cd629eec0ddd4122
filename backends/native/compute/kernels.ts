import type { CacheLayer, NewTokens } from "./kv-cache.ts";
import type { ParameterStore } from "./parameter-store.ts";
import type { PaddedBatch } from "./row-batches.ts";

/** One saving forward pass, of which one backward pass may be taken. */
export interface TrainPass {
  /** Of the batch's predicted tokens, in `padBatch`'s order; valid until `release`. */
  readonly logprobs: Float32Array;
  /** Adds the gradients of Σ logprobGradient · logprobs to `gradients`. */
  backward(logprobGradient: Float32Array, gradients: ParameterStore): Promise<void>;
  /** Gives the saved activations' memory back. */
  release(): void;
}

/** `count` sequences × `width` new tokens over `pastWidth` cached ones, right-padded. */
export interface DecodeStep {
  readonly count: number;
  readonly width: number;
  /** Cached tokens to attend over; 0 when every sequence is fresh. */
  readonly pastWidth: number;
  /** [count × width] */
  readonly tokenIds: Int32Array;
  /** [count × width]: each token's place in its sequence. */
  readonly positions: Int32Array;
  /** [count]: flat index of each sequence's last new token. */
  readonly lastIndexes: Int32Array;
  /** [count × pastWidth]: 0 for a cached token, -∞ beyond. */
  readonly pastMask: Float32Array;
  /** Per layer, [count, kvHeads, pastWidth, headDim]. */
  readonly past: readonly CacheLayer[];
  /** Steps of one `extend` call are numbered, so that their logits do not share memory. */
  readonly stepIndex: number;
}

export interface DecodeStepResult {
  /** [count × vocabSize] */
  readonly logits: Float32Array;
  /** Per layer, [count, kvHeads, width, headDim]; valid until the next step. */
  readonly layers: readonly NewTokens[];
}

/** What a compute library has to calculate; everything around it is shared. One call at a time. */
export interface Kernels {
  /** Logprobs of the batch's predicted tokens, in `padBatch`'s order; valid until the next call. */
  forward(batch: PaddedBatch, temperature: number): Promise<Float32Array>;
  openPass(batch: PaddedBatch, temperature: number): Promise<TrainPass>;
  /** Float32 values that a pass over rows × padded length keeps. */
  passFloats(rowCount: number, length: number): number;
  decodeStep(step: DecodeStep): Promise<DecodeStepResult>;
  /** The parameter store's contents are no longer what the last call saw. */
  weightsChanged(): void;
  close(): Promise<void>;
}
