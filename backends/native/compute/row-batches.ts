import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";

/** Some rows, right-padded to one length, that one graph run takes together. */
export interface RowBatch {
  /** Indexes into the caller's rows. */
  readonly rowIndexes: readonly number[];
  /** Padded length. */
  readonly length: number;
}

export interface RowBatchLimits {
  /** Rows × padded length, unless one row alone is longer. */
  readonly maxTokens: number;
  /** Rows × padded length², which bounds the attention matrices. */
  readonly maxSquares: number;
}

/** Rows whose padding would be more than this share of a batch start a batch of their own. */
const maxPaddedShare = 0.25;
const lengthStep = 8;

const roundUp = (length: number): number => Math.ceil(length / lengthStep) * lengthStep;

/**
 * Sorts rows by length and cuts them into batches, longest first, so that little is padding. Rows
 * of fewer than two tokens predict nothing and are in no batch.
 */
export function planRowBatches(lengths: readonly number[], limits: RowBatchLimits): RowBatch[] {
  const order = lengths
    .map((length, index) => ({ length, index }))
    .filter((row) => row.length > 1)
    .sort((a, b) => b.length - a.length || a.index - b.index);
  const batches: { rowIndexes: number[]; length: number; tokens: number }[] = [];
  for (const row of order) {
    const last = batches.at(-1);
    if (last !== undefined) {
      const padded = (last.rowIndexes.length + 1) * last.length;
      const fits = padded <= limits.maxTokens && padded * last.length <= limits.maxSquares;
      const isTight = padded - last.tokens - row.length <= padded * maxPaddedShare;
      if (fits && (isTight || padded <= limits.maxTokens / 4)) {
        last.rowIndexes.push(row.index);
        last.tokens += row.length;
        continue;
      }
    }
    batches.push({ rowIndexes: [row.index], length: roundUp(row.length), tokens: row.length });
  }
  return batches.map(({ rowIndexes, length }) => ({ rowIndexes, length }));
}

/** Throws unless every row fits the model: token ids in the vocabulary, length in its context. */
export function checkRows(rows: readonly Int32Array[], config: ModelConfig): void {
  for (const [index, row] of rows.entries()) {
    if (row.length > config.maxSequenceLength) {
      throw new OutriggerError(
        "row-too-long",
        `row ${index} has ${row.length} tokens, the model takes ${config.maxSequenceLength}`,
        { origin: "user", hint: "Lower the experiment's maximum length or use a longer model." },
      );
    }
    const bad = row.find((id) => id < 0 || id >= config.vocabSize);
    if (bad !== undefined) {
      throw new OutriggerError(
        "token-out-of-range",
        `row ${index} has token id ${bad}, the vocabulary has ${config.vocabSize}`,
        { origin: "user", hint: "The tokenizer does not belong to this model." },
      );
    }
  }
}

/** The positions of a padded batch that predict a token of a row, in row order. */
export interface PaddedBatch {
  readonly rowCount: number;
  readonly length: number;
  /** [rows × length], padding 0. */
  readonly tokenIds: Int32Array;
  /** For each predicted token, the flat position that predicts it. */
  readonly predictIndexes: Int32Array;
  /** For each predicted token, its id. */
  readonly targets: Int32Array;
}

export function padBatch(rows: readonly Int32Array[], batch: RowBatch): PaddedBatch {
  const tokenIds = new Int32Array(batch.rowIndexes.length * batch.length);
  const picked = batch.rowIndexes.map((index) => rows[index] ?? new Int32Array());
  const targetCount = picked.reduce((sum, row) => sum + row.length - 1, 0);
  const predictIndexes = new Int32Array(targetCount);
  const targets = new Int32Array(targetCount);
  let next = 0;
  for (const [b, row] of picked.entries()) {
    tokenIds.set(row, b * batch.length);
    targets.set(row.subarray(1), next);
    for (let t = 0; t + 1 < row.length; t++) predictIndexes[next++] = b * batch.length + t;
  }
  return { rowCount: picked.length, length: batch.length, tokenIds, predictIndexes, targets };
}

/** An array per row with NaN in entry 0, to be filled from `scatterToRows`. */
export const emptyLogprobs = (rows: readonly Int32Array[]): Float32Array[] =>
  rows.map((row) => new Float32Array(row.length).fill(Number.NaN));

/** Moves predicted tokens' values, in `padBatch`'s order, to entries 1… of their rows. */
export function scatterToRows(
  values: Float32Array,
  batch: RowBatch,
  into: readonly Float32Array[],
): void {
  let next = 0;
  for (const index of batch.rowIndexes) {
    const row = into[index];
    if (row === undefined) continue;
    row.set(values.subarray(next, next + row.length - 1), 1);
    next += row.length - 1;
  }
}

/** The reverse of `scatterToRows`: entries 1… of a batch's rows, in `padBatch`'s order. */
export function gatherFromRows(rows: readonly Float32Array[], batch: RowBatch): Float32Array {
  const picked = batch.rowIndexes.map((index) => rows[index] ?? new Float32Array(1));
  const values = new Float32Array(picked.reduce((sum, row) => sum + row.length - 1, 0));
  let next = 0;
  for (const row of picked) {
    values.set(row.subarray(1), next);
    next += row.length - 1;
  }
  return values;
}

/** Throws unless there is one gradient value per token. */
export function checkGradients(
  rows: readonly Int32Array[],
  gradients: readonly Float32Array[],
): void {
  const isSameShape =
    gradients.length === rows.length && rows.every((row, r) => gradients[r]?.length === row.length);
  if (!isSameShape) throw new RangeError("gradientOf must return one value per token of each row");
}

export function checkTemperature(temperature: number): void {
  if (temperature > 0 && Number.isFinite(temperature)) return;
  throw new OutriggerError("temperature-invalid", `temperature ${temperature} is not above 0`, {
    origin: "user",
    hint: "Logprobs are those of softmax(logits / temperature); greedy sampling has none.",
  });
}
