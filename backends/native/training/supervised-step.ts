import type { AdamWSettings, Compute } from "../compute/compute.ts";
import { microBatches } from "./micro-batches.ts";

export interface SupervisedRow {
  readonly tokenIds: Int32Array;
  /** 1 where the token is to be learned; entry 0 is ignored, since nothing predicts it. */
  readonly lossMask: Uint8Array;
}

/**
 * One supervised fine-tuning step: AdamW on the mean negative logprob (nats per learned token) of
 * the masked tokens of all rows. Rows are split into micro-batches of `tokenBudget` padded tokens,
 * which does not change the gradient.
 */
export async function supervisedStep(
  compute: Compute,
  rows: readonly SupervisedRow[],
  settings: AdamWSettings,
  tokenBudget = 16_384,
): Promise<{ readonly loss: number; readonly gradNorm: number; readonly tokenCount: number }> {
  const isLearned = (row: SupervisedRow, t: number): boolean => t > 0 && row.lossMask[t] === 1;
  let tokenCount = 0;
  for (const row of rows) {
    for (let t = 1; t < row.tokenIds.length; t++) if (isLearned(row, t)) tokenCount += 1;
  }
  if (tokenCount === 0) return { loss: 0, gradNorm: 0, tokenCount };
  let loss = 0;
  const lengths = rows.map((row) => row.tokenIds.length);
  for (const batch of microBatches(lengths, tokenBudget)) {
    const chosen = batch.map((index) => rows[index] as SupervisedRow);
    await compute.backward(
      chosen.map((row) => row.tokenIds),
      1,
      (logprobs) =>
        chosen.map((row, i) => {
          const own = logprobs[i] as Float32Array;
          const gradient = new Float32Array(own.length);
          for (let t = 1; t < own.length; t++) {
            if (!isLearned(row, t)) continue;
            gradient[t] = -1 / tokenCount;
            loss -= (own[t] as number) / tokenCount;
          }
          return gradient;
        }),
    );
  }
  const { gradNorm } = await compute.step(settings);
  return { loss, gradNorm, tokenCount };
}
