import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { Compute } from "../../native/compute/compute.ts";
import { createSerialQueue } from "../../native/compute/serial-queue.ts";
import { microBatches } from "../../native/training/micro-batches.ts";
import {
  buildRow,
  type RowResult,
  readClipBounds,
  rowLoss,
  type TrainingRow,
} from "./datum-loss.ts";
import { badInput } from "./request-error.ts";
import type { AdamInput, LossInput } from "./request-schemas.ts";
import type { WeightsStore } from "./weights-store.ts";

type Json = Readonly<Record<string, unknown>>;

export interface TrainedModelOptions {
  readonly modelId: string;
  readonly compute: Compute;
  readonly store: WeightsStore;
  readonly maxLength: number;
  /** Padded tokens of one micro-batch. */
  readonly tokenBudget: number;
}

/** One model that a client trains; its calls run one after the other, in the order they came. */
export interface TrainedModel {
  readonly modelId: string;
  /** Checks at once and throws; the work is the promise. */
  forward(input: LossInput, withGradient: boolean): Promise<Json>;
  optimStep(params: AdamInput): Promise<Json>;
  saveWeights(name: string): Promise<Json>;
  saveForSampler(name: string): Promise<string>;
  loadWeights(path: string, withOptimizer: boolean): Promise<Json>;
  close(): Promise<void>;
}

export function createTrainedModel(options: TrainedModelOptions): TrainedModel {
  const { modelId, compute, store } = options;
  const serial = createSerialQueue();
  let corruption: string | undefined;
  let isFresh = true;

  /** In turn, and never on weights that a step has made infinite. */
  const inTurn = <T>(job: () => Promise<T>): Promise<T> =>
    serial(async () => {
      if (corruption !== undefined) {
        throw new OutriggerError(
          "model-corrupt",
          `model ${modelId} is not finite any more since ${corruption}; load a saved state into a new model`,
          { origin: "backend" },
        );
      }
      return job();
    });

  const pass = async (
    rows: readonly TrainingRow[],
    input: LossInput,
    withGradient: boolean,
  ): Promise<Json> => {
    const bounds = readClipBounds(input);
    const results: RowResult[] = [];
    const logprobs: Float32Array[] = [];
    const finish = (index: number, own: Float32Array): Float32Array => {
      const row = rows[index] as TrainingRow;
      const result = rowLoss(row, own, input.loss_fn, bounds);
      if (!Number.isFinite(result.loss)) throw notFinite(`the loss of data.${index}`);
      results[index] = result;
      logprobs[index] = own.slice();
      return result.gradient;
    };
    const lengths = rows.map((row) => row.tokenIds.length);
    for (const batch of microBatches(lengths, options.tokenBudget)) {
      const ids = batch.map((index) => (rows[index] as TrainingRow).tokenIds);
      if (withGradient) {
        await compute.backward(ids, 1, (own) =>
          batch.map((index, i) => finish(index, own[i] as Float32Array)),
        );
      } else {
        const own = await compute.logprobs(ids, 1);
        batch.forEach((index, i) => finish(index, own[i] as Float32Array));
      }
    }
    return buildOutput(rows, results, logprobs);
  };

  return {
    modelId,
    forward: (input, withGradient) => {
      const { vocabSize } = compute.config;
      const limits = { vocabSize, maxLength: options.maxLength };
      readClipBounds(input);
      const rows = input.data.map((datum, i) => buildRow(datum, i, input.loss_fn, limits));
      isFresh = false;
      return inTurn(async () => {
        try {
          return await pass(rows, input, withGradient);
        } catch (error) {
          // A call has added its whole gradient or nothing the client knows of: what was
          // accumulated cannot be told apart any more.
          if (withGradient) corruption = `a failed forward_backward (${(error as Error).message})`;
          throw error;
        }
      });
    },
    optimStep: (params) => {
      isFresh = false;
      return inTurn(async () => {
        const { grad_clip_norm: limit } = params;
        try {
          const { gradNorm } = await compute.step({
            learningRate: params.learning_rate,
            beta1: params.beta1,
            beta2: params.beta2,
            epsilon: params.eps,
            weightDecay: params.weight_decay,
            ...(limit > 0 ? { maxGradNorm: limit } : {}),
          });
          if (!Number.isFinite(gradNorm)) throw notFinite("the gradient's norm");
          for (const [name, { data }] of await compute.weights()) {
            if (!data.every(Number.isFinite)) throw notFinite(`${name} after the step`);
          }
          return { type: "optim_step", metrics: { grad_norm: gradNorm } };
        } catch (error) {
          corruption = `a failed optim_step (${(error as Error).message})`;
          throw error;
        }
      });
    },
    saveWeights: (name) => {
      isFresh = false;
      return inTurn(async () => {
        const [weights, optimizer] = [await compute.weights(), await compute.optimizerState()];
        const path = await store.save(modelId, "weights", name, weights, optimizer);
        return { type: "save_weights", path };
      });
    },
    saveForSampler: (name) => {
      isFresh = false;
      return inTurn(async () =>
        store.save(modelId, "sampler_weights", name, await compute.weights()),
      );
    },
    loadWeights: (path, withOptimizer) => {
      if (!isFresh) throw badInput("load_weights must be a model's first call");
      isFresh = false;
      return inTurn(async () => {
        await compute.setWeights(await store.load(path));
        if (withOptimizer) await compute.setOptimizerState(await store.loadOptimizer(path));
        return { type: "load_weights", path };
      });
    },
    close: () => serial(() => compute.close()),
  };
}

const notFinite = (what: string): OutriggerError =>
  new OutriggerError("not-finite", `${what} is not finite`, { origin: "backend" });

function buildOutput(
  rows: readonly TrainingRow[],
  results: readonly RowResult[],
  logprobs: readonly Float32Array[],
): Json {
  const tensor = (data: readonly number[]): Json => ({
    data,
    dtype: "float32",
    shape: [data.length],
  });
  return {
    loss_fn_output_type: "tensors",
    loss_fn_outputs: rows.map((row, r) => {
      const own = logprobs[r] as Float32Array;
      const result = results[r] as RowResult;
      const values = Array.from(own.subarray(1), (v, i) => (row.isTarget[i + 1] === 1 ? v : 0));
      return { logprobs: tensor(values), elementwise_loss: tensor(result.elementwiseLoss) };
    }),
    metrics: { "loss:sum": results.reduce((sum, { loss }) => sum + loss, 0) },
  };
}
