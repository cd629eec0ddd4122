import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { AdamWSettings } from "./compute.ts";

export interface AdamWState {
  readonly weights: Float32Array;
  readonly firstMoments: Float32Array;
  readonly secondMoments: Float32Array;
}

/** Global L2 norm. A norm that is not finite is an error: applied, it would ruin the weights. */
export function gradientNorm(gradient: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < gradient.length; i++) {
    const g = gradient[i] as number;
    sum += g * g;
  }
  const norm = Math.sqrt(sum);
  if (!Number.isFinite(norm)) throw gradientNotFinite(norm);
  return norm;
}

export const gradientNotFinite = (norm: number): OutriggerError =>
  new OutriggerError("gradient-not-finite", `the gradient's norm is ${norm}; weights unchanged`, {
    origin: "backend",
    hint: "Look for infinite or NaN advantages, weights or logprobs in the batch, or lower the learning rate.",
  });

/** What the gradient is multiplied with: `min(1, maxGradNorm / (norm + 1e-6))`, as in PyTorch. */
export const clipFactor = (norm: number, maxGradNorm: number | undefined): number =>
  maxGradNorm === undefined ? 1 : Math.min(1, maxGradNorm / (norm + 1e-6));

/**
 * One AdamW step in place, with the arithmetic of `torch.optim.AdamW`: decoupled decay on every
 * parameter (norms and biases too), bias-corrected moments. `stepCount` counts this step, from 1.
 */
export function applyAdamW(
  state: AdamWState,
  gradient: Float32Array,
  gradientScale: number,
  stepCount: number,
  settings: AdamWSettings,
): void {
  const { weights, firstMoments, secondMoments } = state;
  const { learningRate, beta1, beta2, epsilon, weightDecay } = settings;
  const stepSize = learningRate / (1 - beta1 ** stepCount);
  const secondCorrection = 1 / Math.sqrt(1 - beta2 ** stepCount);
  const keep = 1 - learningRate * weightDecay;
  for (let i = 0; i < weights.length; i++) {
    const g = (gradient[i] as number) * gradientScale;
    const m = beta1 * (firstMoments[i] as number) + (1 - beta1) * g;
    const v = beta2 * (secondMoments[i] as number) + (1 - beta2) * g * g;
    firstMoments[i] = m;
    secondMoments[i] = v;
    const denominator = Math.sqrt(v) * secondCorrection + epsilon;
    weights[i] = (weights[i] as number) * keep - (stepSize * m) / denominator;
  }
}
