import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { TrainingSample } from "../../../core/sample.ts";
import type { UpdateResult, UpdateSettings } from "../../../core/trainer-backend.ts";
import type { Compute } from "../compute/compute.ts";
import { updateNotFinite } from "./check-update.ts";
import { createLogprobGapCollector } from "./logprob-gap.ts";
import { microBatches } from "./micro-batches.ts";
import { policyLossOfRow } from "./policy-loss.ts";

export interface AccumulateOptions {
  readonly compute: Compute;
  /** The frozen model; needed when `klCoefficient` is not 0. */
  readonly reference?: Compute | undefined;
  readonly settings: UpdateSettings;
  /** Padded tokens of one micro-batch. */
  readonly tokenBudget: number;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((samplesDone: number) => void) | undefined;
}

export type AccumulatedUpdate = Omit<
  UpdateResult,
  "updateId" | "version" | "applied" | "gradNorm" | "sampleCount"
>;

/**
 * Adds the gradient of a batch to the accumulator, micro-batch by micro-batch. On abort, and on a
 * loss or gradient that is not finite, the accumulator is cleared and nothing has changed.
 */
export async function accumulateUpdate(
  samples: readonly TrainingSample[],
  options: AccumulateOptions,
): Promise<AccumulatedUpdate> {
  const { compute, reference, settings } = options;
  const gap = createLogprobGapCollector();
  const sum = { loss: 0, trained: 0, clipped: 0, masked: 0, kl: 0 };
  let samplesDone = 0;
  try {
    const lengths = samples.map((s) => s.tokenIds.length);
    for (const batch of microBatches(lengths, options.tokenBudget)) {
      options.signal?.throwIfAborted();
      const chosen = batch.map((row) => samples[row] as TrainingSample);
      const rows = chosen.map((sample) => sample.tokenIds);
      const referenceLogprobs =
        settings.klCoefficient === 0 || reference === undefined
          ? undefined
          : await reference.logprobs(rows, settings.temperature);
      await compute.backward(rows, settings.temperature, (logprobs) =>
        chosen.map((sample, i) => {
          const own = logprobs[i] as Float32Array;
          const frozen = referenceLogprobs?.[i];
          const row = policyLossOfRow(
            { sample, logprobs: own, referenceLogprobs: frozen },
            settings,
          );
          checkFinite(sample, row.loss, row.gradient);
          sum.loss += row.loss;
          sum.trained += row.trained.length;
          sum.clipped += row.clippedCount;
          sum.masked += row.maskedCount;
          for (const t of row.trained) {
            gap.add(sample.samplingLogprobs[t] as number, own[t] as number);
            if (frozen !== undefined) sum.kl += k3((frozen[t] as number) - (own[t] as number));
          }
          return row.gradient;
        }),
      );
      samplesDone += batch.length;
      options.onProgress?.(samplesDone);
    }
    options.signal?.throwIfAborted();
  } catch (error) {
    compute.clearGradients();
    throw error;
  }
  const { meanRatio, ...logprobGap } = gap.result();
  const perToken = (count: number): number => (sum.trained === 0 ? 0 : count / sum.trained);
  return {
    trainedTokenCount: sum.trained,
    loss: sum.loss,
    logprobGap,
    meanRatio,
    clippedFraction: perToken(sum.clipped),
    metrics: {
      "correction/masked_fraction": perToken(sum.masked),
      ...(settings.klCoefficient === 0 ? {} : { "reference/kl": perToken(sum.kl) }),
    },
  };
}

const k3 = (d: number): number => Math.expm1(d) - d;

function checkFinite(sample: TrainingSample, loss: number, gradient: Float32Array): void {
  if (Number.isFinite(loss) && gradient.every(Number.isFinite)) return;
  throw updateNotFinite(`the loss of rollout ${sample.rolloutId} is ${loss}`);
}

/** The optimizer step; a gradient that is not finite changes nothing. */
export async function stepUpdate(
  compute: Compute,
  settings: UpdateSettings,
): Promise<{ readonly gradNorm: number }> {
  const { learningRate, beta1, beta2, epsilon, weightDecay, maxGradNorm } = settings;
  try {
    const step = await compute.step({
      learningRate,
      beta1,
      beta2,
      epsilon,
      weightDecay,
      ...(maxGradNorm === undefined ? {} : { maxGradNorm }),
    });
    if (!Number.isFinite(step.gradNorm)) {
      throw updateNotFinite(`the gradient's norm is ${step.gradNorm}`);
    }
    return step;
  } catch (error) {
    compute.clearGradients();
    if (error instanceof OutriggerError && error.reason === "gradient-not-finite") {
      throw updateNotFinite(error.message, error);
    }
    throw error;
  }
}
