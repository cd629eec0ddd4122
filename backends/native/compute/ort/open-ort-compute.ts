import { availableParallelism } from "node:os";
import ort from "onnxruntime-node";
import type { ModelConfig } from "../../model/model-config.ts";
import type { NamedWeights } from "../../model/named-weights.ts";
import type { Compute } from "../compute.ts";
import { createHostParameters } from "../host-parameters.ts";
import { copyParameters, type ParameterStore } from "../parameter-store.ts";
import {
  checkGradients,
  checkRows,
  checkTemperature,
  emptyLogprobs,
  gatherFromRows,
  planRowBatches,
  type RowBatch,
  type RowBatchLimits,
  scatterToRows,
} from "../row-batches.ts";
import { createSerialQueue } from "../serial-queue.ts";
import { openOrtDecoder } from "./ort-decoder.ts";
import type { OrtDevice } from "./ort-session.ts";
import { createOrtTrainer, type OrtTrainer, type TrainPass } from "./ort-trainer.ts";

export interface OrtComputeOptions {
  /** Default "cpu". */
  readonly device?: OrtDevice;
  /** Threads within one operator; default: the CPUs that this process may use. */
  readonly threads?: number;
  /** Padded tokens of one graph run; more gains little and takes more memory. Default 2048. */
  readonly maxBatchTokens?: number;
}

/** Floats that the attention matrices and logits of one graph run may take. */
const maxLargeFloats = 64 * 1024 * 1024;
/** Activations that one `backward` keeps: 768 MB. */
const maxKeptFloats = 192 * 1024 * 1024;

export function rowBatchLimits(config: ModelConfig, maxBatchTokens: number): RowBatchLimits {
  return {
    maxTokens: Math.max(1, Math.min(maxBatchTokens, Math.floor(maxLargeFloats / config.vocabSize))),
    maxSquares: Math.floor(maxLargeFloats / (config.headCount * config.layerCount)),
  };
}

const lengthsOf = (rows: readonly Int32Array[]): number[] => rows.map((row) => row.length);

interface TrainParts {
  readonly config: ModelConfig;
  readonly trainer: OrtTrainer;
  readonly gradients: ParameterStore;
  readonly limits: RowBatchLimits;
}

async function computeLogprobs(
  { trainer, limits }: TrainParts,
  rows: readonly Int32Array[],
  temperature: number,
): Promise<Float32Array[]> {
  const result = emptyLogprobs(rows);
  for (const batch of planRowBatches(lengthsOf(rows), limits)) {
    scatterToRows(await trainer.forward(rows, batch, temperature), batch, result);
  }
  return result;
}

/**
 * Every batch goes forward before `gradientOf` is asked. Activations are kept for as many batches as
 * `maxKeptFloats` allows; the others go forward once more.
 */
async function computeBackward(
  { trainer, limits, gradients }: TrainParts,
  rows: readonly Int32Array[],
  temperature: number,
  gradientOf: (logprobs: readonly Float32Array[]) => readonly Float32Array[],
): Promise<void> {
  const batches = planRowBatches(lengthsOf(rows), limits);
  const logprobs = emptyLogprobs(rows);
  const passes = new Map<RowBatch, TrainPass>();
  try {
    let keptFloats = 0;
    for (const batch of batches) {
      keptFloats += trainer.passFloats(batch);
      const isKept = keptFloats <= maxKeptFloats || batches.length === 1;
      if (isKept) passes.set(batch, await trainer.openPass(rows, batch, temperature));
      const values =
        passes.get(batch)?.logprobs ?? (await trainer.forward(rows, batch, temperature));
      scatterToRows(values, batch, logprobs);
    }
    const wanted = gradientOf(logprobs);
    checkGradients(rows, wanted);
    for (const batch of batches) {
      const pass = passes.get(batch) ?? (await trainer.openPass(rows, batch, temperature));
      passes.set(batch, pass);
      await pass.backward(gatherFromRows(wanted, batch), gradients);
      pass.release();
      passes.delete(batch);
    }
  } finally {
    for (const pass of passes.values()) pass.release();
  }
}

/** `Compute` on ONNX Runtime. Weights, moments and gradients live in this process's memory. */
export async function openOrtCompute(
  config: ModelConfig,
  weights: NamedWeights,
  options: OrtComputeOptions = {},
): Promise<Compute> {
  const session = {
    device: options.device ?? "cpu",
    threads: options.threads ?? availableParallelism(),
  };
  const host = createHostParameters(config, weights);
  const trainer = createOrtTrainer(config, host.weights, session);
  const limits = rowBatchLimits(config, options.maxBatchTokens ?? 2048);
  const parts = { config, trainer, gradients: host.gradients, limits };
  // Also keeps an update from changing weights that a run in another thread is reading.
  const serial = createSerialQueue();
  const decoder = await openOrtDecoder(config, host.weights, session);
  const check = (rows: readonly Int32Array[], temperature: number): void => {
    checkRows(rows, config);
    checkTemperature(temperature);
  };

  return {
    description: {
      library: "onnxruntime-node",
      version: ort.env.versions.node ?? ort.env.versions.common,
      device: session.device,
      threads: session.threads,
    },
    config,
    async logprobs(rows, temperature) {
      check(rows, temperature);
      return serial(() => computeLogprobs(parts, rows, temperature));
    },
    async backward(rows, temperature, gradientOf) {
      check(rows, temperature);
      return serial(() => computeBackward(parts, rows, temperature, gradientOf));
    },
    step: (settings) => serial(async () => host.step(settings)),
    gradients: () => serial(async () => copyParameters(host.gradients)),
    clearGradients: () => host.clearGradients(),
    weights: () => serial(async () => copyParameters(host.weights)),
    setWeights: (next) => serial(async () => host.setWeights(next)),
    optimizerState: () => serial(async () => host.optimizerState()),
    setOptimizerState: (state) => serial(async () => host.setOptimizerState(state)),
    openDecode: async (decodeOptions) => decoder.open(decodeOptions, serial),
    close: () =>
      serial(async () => {
        await trainer.close();
        await decoder.close();
      }),
  };
}
