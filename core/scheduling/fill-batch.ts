import type { TrainingSample } from "../sample.ts";
import type { PackedBatch } from "./pack-batch.ts";

/** Row-major [rowCount, length]. Padding, of rows and of row ends, has mask and weight 0. */
export interface FilledBatch {
  readonly rowCount: number;
  readonly length: number;
  readonly tokenIds: Int32Array;
  readonly lossMask: Uint8Array;
  /** 0 where the mask is 0, so that no NaN meets a zero weight. */
  readonly samplingLogprobs: Float32Array;
  readonly advantages: Float32Array;
  readonly weights: Float32Array;
}

/** The arrays of one packed micro-batch; `padTokenId` is any valid id, it is never trained. */
export function fillBatch(
  samples: readonly TrainingSample[],
  { shape, rowIndexes }: PackedBatch,
  padTokenId: number,
): FilledBatch {
  const { rowCount, length } = shape;
  const size = rowCount * length;
  const batch: FilledBatch = {
    rowCount,
    length,
    tokenIds: new Int32Array(size).fill(padTokenId),
    lossMask: new Uint8Array(size),
    samplingLogprobs: new Float32Array(size),
    advantages: new Float32Array(size),
    weights: new Float32Array(size),
  };
  for (const [row, index] of rowIndexes.entries()) {
    const sample = samples[index];
    if (sample === undefined) continue;
    const start = row * length;
    batch.tokenIds.set(sample.tokenIds, start);
    batch.lossMask.set(sample.lossMask, start);
    for (const [t, isTrained] of sample.lossMask.entries()) {
      if (isTrained === 0) continue;
      batch.samplingLogprobs[start + t] = sample.samplingLogprobs[t] ?? 0;
      batch.advantages[start + t] = sample.advantages[t] ?? 0;
      batch.weights[start + t] = sample.weights[t] ?? 0;
    }
  }
  return batch;
}
