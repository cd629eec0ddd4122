import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import { applyAdamW, clipFactor, gradientNorm } from "./adamw.ts";
import type { AdamWSettings, OptimizerState } from "./compute.ts";
import {
  checkWeights,
  copyParameters,
  createParameterStore,
  fillParameters,
  type ParameterStore,
} from "./parameter-store.ts";

/**
 * Weights, accumulated gradients and AdamW moments in this process's memory. Gradients and moments
 * take theirs when they are first needed: a frozen reference model never does.
 */
export interface HostParameters {
  readonly weights: ParameterStore;
  gradients(): ParameterStore;
  step(settings: AdamWSettings): { readonly gradNorm: number };
  clearGradients(): void;
  setWeights(weights: NamedWeights): void;
  optimizerState(): OptimizerState;
  setOptimizerState(state: OptimizerState): void;
}

/** A value that is made when it is first asked for. */
function once<T>(make: () => T): () => T {
  let value: T | undefined;
  return () => (value ??= make());
}

export function createHostParameters(config: ModelConfig, initial: NamedWeights): HostParameters {
  const weights = createParameterStore(config);
  fillParameters(weights, config, initial, "initial weights");
  const gradients = once(() => createParameterStore(config));
  const moments = once(() => ({
    first: createParameterStore(config),
    second: createParameterStore(config),
  }));
  let stepCount = 0;

  return {
    weights,
    gradients,
    step(settings) {
      const gradient = gradients().flat;
      const gradNorm = gradientNorm(gradient);
      stepCount += 1;
      const scale = clipFactor(gradNorm, settings.maxGradNorm);
      const { first, second } = moments();
      const state = {
        weights: weights.flat,
        firstMoments: first.flat,
        secondMoments: second.flat,
      };
      applyAdamW(state, gradient, scale, stepCount, settings);
      gradient.fill(0);
      return { gradNorm };
    },
    clearGradients: () => {
      gradients().flat.fill(0);
    },
    setWeights: (next) => fillParameters(weights, config, next, "new weights"),
    optimizerState: () => ({
      stepCount,
      firstMoments: copyParameters(moments().first),
      secondMoments: copyParameters(moments().second),
    }),
    setOptimizerState(next) {
      checkWeights(config, next.firstMoments, "first moments");
      checkWeights(config, next.secondMoments, "second moments");
      if (!Number.isInteger(next.stepCount) || next.stepCount < 0) {
        throw new OutriggerError(
          "optimizer-state-invalid",
          `optimizer step count ${next.stepCount} is not a whole number`,
          { origin: "user", hint: "The checkpoint's optimizer state is damaged." },
        );
      }
      fillParameters(moments().first, config, next.firstMoments, "first moments");
      fillParameters(moments().second, config, next.secondMoments, "second moments");
      stepCount = next.stepCount;
    },
  };
}
