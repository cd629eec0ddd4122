import type { TrainingSample } from "./sample.ts";

/**
 * How the ratio π/π_sampling becomes a loss per token; all are sums of weight · token loss.
 * `clipLow` and `clipHigh` are bounds of the ratio itself, not ±ε: PPO's usual ε = 0.2 is 0.8 and
 * 1.2, GSPO's are near 1 (0.9997, 1.0004), CISPO's usual ones 0 and 4. `dualClip` is the upper
 * bound of the ratio where the advantage is negative (3 in the paper).
 */
export type PolicyLoss =
  | {
      readonly kind: "ppo";
      readonly clipLow: number;
      readonly clipHigh: number;
      readonly dualClip?: number;
    }
  | { readonly kind: "cispo"; readonly clipLow: number; readonly clipHigh: number }
  | { readonly kind: "gspo"; readonly clipLow: number; readonly clipHigh: number }
  | { readonly kind: "importance-sampling" };

/**
 * Off-policy correction on top of the loss, from the trainer's logprobs at the start of the step
 * and the sampling logprobs. `truncate` multiplies by min(ratio, max); `mask` drops tokens (or
 * whole sequences) whose ratio is outside [min, max].
 */
export type OffPolicyCorrection =
  | { readonly kind: "none" }
  | { readonly kind: "truncate"; readonly level: "token" | "sequence"; readonly max: number }
  | {
      readonly kind: "mask";
      readonly level: "token" | "sequence";
      readonly min: number;
      readonly max: number;
    };

export interface UpdateSettings {
  readonly loss: PolicyLoss;
  readonly correction: OffPolicyCorrection;
  /** Coefficient of the k3 estimate of KL(policy ‖ reference); 0 needs no reference model. */
  readonly klCoefficient: number;
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** Global gradient norm limit; undefined means no clipping. */
  readonly maxGradNorm?: number;
  /** Sampling temperature that the sampling logprobs were reported at. */
  readonly temperature: number;
}

export interface UpdateRequest {
  /** Idempotency key: an update with a known id returns its first result and changes nothing. */
  readonly updateId: string;
  /** The version that the update starts from; the backend must be exactly there. */
  readonly fromVersion: number;
  readonly settings: UpdateSettings;
  readonly samples: AsyncIterable<TrainingSample> | Iterable<TrainingSample>;
}

export interface UpdateResult {
  readonly updateId: string;
  /** The published policy version (fromVersion + 1). */
  readonly version: number;
  /** `applied` is false for an empty batch or an update with zero weight: version is unchanged. */
  readonly applied: boolean;
  readonly sampleCount: number;
  readonly trainedTokenCount: number;
  readonly loss: number;
  readonly gradNorm: number;
  /** Sampler against trainer on the update's own tokens, before the step. */
  readonly logprobGap: {
    readonly meanAbs: number;
    readonly p99Abs: number;
    readonly maxAbs: number;
    /** k3 estimate of KL(sampling ‖ policy). */
    readonly kl: number;
  };
  /** Mean importance ratio and the share of tokens whose loss was clipped. */
  readonly meanRatio: number;
  readonly clippedFraction: number;
  /** Anything else that the backend reports, by name. */
  readonly metrics: Readonly<Record<string, number>>;
}

export interface BackendDescription {
  readonly kind: string;
  readonly model: string;
  /** Library and device that computes, for people: "onnxruntime-node 1.30 (cpu, 2 threads)". */
  readonly compute: string;
  readonly maxSequenceLength: number;
  readonly losses: readonly PolicyLoss["kind"][];
  readonly corrections: readonly OffPolicyCorrection["kind"][];
  readonly supportsKl: boolean;
  readonly supportsRestore: boolean;
}

export interface PolicyEndpoint {
  /** Base URL up to and including `/v1`. */
  readonly url: string;
  readonly model: string;
  readonly version: number;
  /** For engines whose prefix cache may outlive a version: calls carry it as `cache_salt`. */
  readonly cacheSalt?: string;
}

/**
 * The port behind which a trainer backend stands. Every implementation passes
 * `test/contract/trainer-backend.ts`. All methods reject with an `OutriggerError` of origin
 * `backend`; `retryable` says whether the same call may be made again.
 */
export interface TrainerBackend {
  describe(signal?: AbortSignal): Promise<BackendDescription>;
  /** Where the newest published policy is served. */
  policyEndpoints(signal?: AbortSignal): Promise<readonly PolicyEndpoint[]>;
  /** One optimizer step and its publication. Aborting it before it is applied changes nothing. */
  update(request: UpdateRequest, signal?: AbortSignal): Promise<UpdateResult>;
  /** Writes weights and optimizer state under a name, atomically; returns where. */
  checkpoint(
    name: string,
    signal?: AbortSignal,
  ): Promise<{ readonly location: string; readonly version: number }>;
  /** Back to a checkpoint, its version included. */
  restore(name: string, signal?: AbortSignal): Promise<{ readonly version: number }>;
  /**
   * Publishes a checkpoint's weights and moments as `toVersion`, one above the present version: for
   * those who have seen newer versions a number never means two policies. At that version already
   * (a repeated call), nothing is done.
   */
  rollBack(
    name: string,
    toVersion: number,
    signal?: AbortSignal,
  ): Promise<{ readonly version: number }>;
  close(): Promise<void>;
}
