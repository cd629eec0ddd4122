import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import { openCachedDecode } from "./cached-decode.ts";
import type { Compute, ComputeDescription } from "./compute.ts";
import { checkDecodeBounds } from "./decode-plan.ts";
import type { HostParameters } from "./host-parameters.ts";
import type { Kernels } from "./kernels.ts";
import { copyParameters } from "./parameter-store.ts";
import { checkRows, checkTemperature, type RowBatchLimits } from "./row-batches.ts";
import { createSerialQueue, type SerialQueue } from "./serial-queue.ts";
import { computeBackward, computeLogprobs } from "./train-passes.ts";

export interface HostComputeOptions {
  /** Padded tokens of one run; more gains little and takes more memory. Default 2048. */
  readonly maxBatchTokens?: number;
  /**
   * Activations that one `backward` keeps between its forward and backward passes, in float32
   * values; batches beyond that go forward twice. Default 192 Mi (768 MB).
   */
  readonly maxKeptFloats?: number;
}

/** Float32 values that the attention matrices, or the logits, of one run may take. */
const maxLargeFloats = 64 * 1024 * 1024;

function rowBatchLimits(config: ModelConfig, maxBatchTokens: number): RowBatchLimits {
  const maxTokens = Math.min(maxBatchTokens, Math.floor(maxLargeFloats / config.vocabSize));
  return {
    maxTokens: Math.max(1, maxTokens),
    maxSquares: Math.floor(maxLargeFloats / (config.headCount * config.layerCount)),
  };
}

const computeClosed = (): OutriggerError =>
  new OutriggerError("compute-closed", "the compute is closed", { origin: "backend" });

/** `Compute` from a library's kernels, with weights, gradients and moments in host memory. */
export function createHostCompute(
  description: ComputeDescription,
  config: ModelConfig,
  host: HostParameters,
  kernels: Kernels,
  options: HostComputeOptions,
): Compute {
  const limits = rowBatchLimits(config, options.maxBatchTokens ?? 2048);
  const maxKeptFloats = options.maxKeptFloats ?? 192 * 1024 * 1024;
  const queue = createSerialQueue();
  let isClosed = false;
  // Kernels take one call at a time, and no update may change weights that one is reading.
  const serial: SerialQueue = (job) =>
    queue(async () => {
      if (isClosed) throw computeClosed();
      return job();
    });
  const check = (rows: readonly Int32Array[], temperature: number): void => {
    checkRows(rows, config);
    checkTemperature(temperature);
  };

  return {
    description,
    config,
    async logprobs(rows, temperature) {
      check(rows, temperature);
      return serial(() => computeLogprobs(kernels, limits, rows, temperature));
    },
    async backward(rows, temperature, gradientOf) {
      check(rows, temperature);
      const job = { rows, temperature, gradientOf, limits, maxKeptFloats };
      return serial(() => computeBackward(kernels, job, host.gradients()));
    },
    step: (settings) =>
      serial(async () => {
        const result = host.step(settings);
        kernels.weightsChanged();
        return result;
      }),
    gradients: () => serial(async () => copyParameters(host.gradients())),
    clearGradients: () => host.clearGradients(),
    weights: () => serial(async () => copyParameters(host.weights)),
    setWeights: (weights) =>
      serial(async () => {
        host.setWeights(weights);
        kernels.weightsChanged();
      }),
    optimizerState: () => serial(async () => host.optimizerState()),
    setOptimizerState: (state) => serial(async () => host.setOptimizerState(state)),
    async openDecode(bounds) {
      checkDecodeBounds(bounds, config);
      return openCachedDecode(config, kernels, bounds, serial);
    },
    close: () =>
      queue(async () => {
        if (isClosed) return;
        isClosed = true;
        await kernels.close();
      }),
  };
}
