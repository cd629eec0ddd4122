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

/** Weights, accumulated gradients and AdamW moments in this process's memory. */
export interface HostParameters {
  readonly weights: ParameterStore;
  readonly gradients: ParameterStore;
  step(settings: AdamWSettings): { readonly gradNorm: number };
  clearGradients(): void;
  setWeights(weights: NamedWeights): void;
  optimizerState(): OptimizerState;
  setOptimizerState(state: OptimizerState): void;
}

export function createHostParameters(config: ModelConfig, initial: NamedWeights): HostParameters {
  const weights = createParameterStore(config);
  fillParameters(weights, config, initial, "initial weights");
  const gradients = createParameterStore(config);
  const first = createParameterStore(config);
  const second = createParameterStore(config);
  const state = {
    weights: weights.flat,
    firstMoments: first.flat,
    secondMoments: second.flat,
  };
  let stepCount = 0;

  return {
    weights,
    gradients,
    step(settings) {
      const gradNorm = gradientNorm(gradients.flat);
      stepCount += 1;
      const scale = clipFactor(gradNorm, settings.maxGradNorm);
      applyAdamW(state, gradients.flat, scale, stepCount, settings);
      gradients.flat.fill(0);
      return { gradNorm };
    },
    clearGradients: () => {
      gradients.flat.fill(0);
    },
    setWeights: (next) => fillParameters(weights, config, next, "new weights"),
    optimizerState: () => ({
      stepCount,
      firstMoments: copyParameters(first),
      secondMoments: copyParameters(second),
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
      fillParameters(first, config, next.firstMoments, "first moments");
      fillParameters(second, config, next.secondMoments, "second moments");
      stepCount = next.stepCount;
    },
  };
}
