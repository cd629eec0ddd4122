/**
 * One training row built from a trajectory. All arrays but `callIds` have the row's length T.
 *
 * Example, prompt [1,2], response [3,4]: `tokenIds [1,2,3,4]`, `lossMask [0,0,1,1]`,
 * `samplingLogprobs [NaN,NaN,-0.5,-0.1]`, `policyVersions [-1,-1,7,7]`.
 * The odd case: a row whose ancestors are trained in another row has lossMask 0 over them.
 */
export interface Sample {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly tokenIds: Int32Array;
  /** 1 where the policy sampled the token and it is to be trained. */
  readonly lossMask: Uint8Array;
  /** The engine's logprob of each trained token; NaN elsewhere (missing is never zero). */
  readonly samplingLogprobs: Float32Array;
  /** The version that sampled each trained token; -1 elsewhere. */
  readonly policyVersions: Int32Array;
  /** The calls whose response is trained in this row, in row order. */
  readonly callIds: readonly string[];
}

/** A sample with what the trainer needs: the only input of `TrainerBackend.update`. */
export interface TrainingSample extends Sample {
  readonly groupId: string;
  /** Per-token advantage, length T; 0 where lossMask is 0. */
  readonly advantages: Float32Array;
  /** Per-token loss weight, length T: the loss of one step is Σ weight · token loss. */
  readonly weights: Float32Array;
  /**
   * Positions where a response begins right after another trained one, in order; absent where
   * there is none, and every run of loss mask 1 is one response.
   */
  readonly responseStarts?: Int32Array;
}
