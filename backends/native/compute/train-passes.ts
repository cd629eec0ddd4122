import type { Kernels, TrainPass } from "./kernels.ts";
import type { ParameterStore } from "./parameter-store.ts";
import {
  checkGradients,
  emptyLogprobs,
  gatherFromRows,
  padBatch,
  planRowBatches,
  type RowBatch,
  type RowBatchLimits,
  scatterToRows,
} from "./row-batches.ts";

const lengthsOf = (rows: readonly Int32Array[]): number[] => rows.map((row) => row.length);

export async function computeLogprobs(
  kernels: Kernels,
  limits: RowBatchLimits,
  rows: readonly Int32Array[],
  temperature: number,
): Promise<Float32Array[]> {
  const result = emptyLogprobs(rows);
  for (const batch of planRowBatches(lengthsOf(rows), limits)) {
    scatterToRows(await kernels.forward(padBatch(rows, batch), temperature), batch, result);
  }
  return result;
}

export interface BackwardJob {
  readonly rows: readonly Int32Array[];
  readonly temperature: number;
  readonly gradientOf: (logprobs: readonly Float32Array[]) => readonly Float32Array[];
  readonly limits: RowBatchLimits;
  /** Activations to keep between the passes, in float32 values. */
  readonly maxKeptFloats: number;
}

/**
 * Every batch goes forward before `gradientOf` is asked. Activations are kept for as many batches as
 * `maxKeptFloats` allows; the others go forward once more.
 */
export async function computeBackward(
  kernels: Kernels,
  job: BackwardJob,
  gradients: ParameterStore,
): Promise<void> {
  const { rows, temperature } = job;
  const batches = planRowBatches(lengthsOf(rows), job.limits);
  const logprobs = emptyLogprobs(rows);
  const passes = new Map<RowBatch, TrainPass>();
  const openPass = async (batch: RowBatch): Promise<TrainPass> => {
    const pass = await kernels.openPass(padBatch(rows, batch), temperature);
    passes.set(batch, pass);
    return pass;
  };
  try {
    let keptFloats = 0;
    for (const batch of batches) {
      keptFloats += kernels.passFloats(batch.rowIndexes.length, batch.length);
      const isKept = keptFloats <= job.maxKeptFloats || batches.length === 1;
      const values = isKept
        ? (await openPass(batch)).logprobs
        : await kernels.forward(padBatch(rows, batch), temperature);
      scatterToRows(values, batch, logprobs);
    }
    const wanted = job.gradientOf(logprobs);
    checkGradients(rows, wanted);
    for (const batch of batches) {
      const pass = passes.get(batch) ?? (await openPass(batch));
      await pass.backward(gatherFromRows(wanted, batch), gradients);
      pass.release();
      passes.delete(batch);
    }
  } finally {
    for (const pass of passes.values()) pass.release();
  }
}
