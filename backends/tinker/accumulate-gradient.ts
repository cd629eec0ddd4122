import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import { policyLossOfRow } from "../native/training/policy-loss.ts";
import { buildGradientDatum, buildLoss, splitIntoCalls } from "./build-data.ts";
import { readLogprobs } from "./summarise-update.ts";
import type { Datum } from "./tinker-wire.ts";

type Json = Readonly<Record<string, unknown>>;

export interface GradientCalls {
  readonly trainable: readonly TrainingSample[];
  /** Those rows as `buildDatum` makes them, cut into calls. */
  readonly batches: readonly (readonly Datum[])[];
  readonly settings: UpdateSettings;
  /** Tokens of one call. */
  readonly maxCallTokens: number;
  /** Sends one training call; `callIndex` counts the calls of an update. */
  readonly send: (
    path: "forward" | "forward_backward",
    body: Json,
    callIndex: number,
  ) => Promise<Json>;
  /** Of the frozen start model, row by row; asked for only where KL is part of the loss. */
  readonly referenceLogprobs: () => Promise<readonly Float32Array[]>;
}

export interface AccumulatedGradient {
  /** The trainer's, of each row [T] at the start of the step, entry 0 NaN. */
  readonly logprobs: readonly Float32Array[];
  readonly referenceLogprobs?: readonly Float32Array[];
}

/** Whether the server has this loss itself; else its gradient is worked out here. */
export function isServerLoss({ loss, correction, klCoefficient }: UpdateSettings): boolean {
  const hasName = loss.kind !== "gspo" && !(loss.kind === "ppo" && loss.dualClip !== undefined);
  return hasName && correction.kind === "none" && klCoefficient === 0;
}

/** How many training calls an update makes before its optimizer step. */
export function gradientCallCount(batchCount: number, settings: UpdateSettings): number {
  return isServerLoss(settings) ? batchCount : 2 * batchCount;
}

/**
 * Adds the gradient of an update to the server's accumulator.
 *
 * A loss that the protocol has no word for (gspo, dual clip, off-policy corrections, KL to a
 * reference) is one of the trainer's own logprobs all the same, and an update is one step from
 * weights at which they are known from a forward pass. So is the slope g of the loss at each token,
 * and importance sampling with those logprobs and −g for advantages has exactly that slope: its
 * ratio is 1.
 */
export async function accumulateGradient(calls: GradientCalls): Promise<AccumulatedGradient> {
  const { trainable, batches, settings, maxCallTokens, send } = calls;
  if (isServerLoss(settings)) {
    const answers: Json[] = [];
    for (const [i, batch] of batches.entries()) {
      const body = { forward_backward_input: { data: batch, ...buildLoss(settings) } };
      answers.push(await send("forward_backward", body, i));
    }
    return { logprobs: readLogprobs(answers, trainable) };
  }
  const answers: Json[] = [];
  for (const [i, batch] of batches.entries()) {
    const body = { forward_input: { data: batch, loss_fn: "importance_sampling" } };
    answers.push(await send("forward", body, i));
  }
  const logprobs = readLogprobs(answers, trainable);
  const reference = settings.klCoefficient === 0 ? undefined : await calls.referenceLogprobs();
  const slopes = trainable.map((sample, r) => {
    const row = { sample, logprobs: logprobs[r] as Float32Array };
    return policyLossOfRow({ ...row, referenceLogprobs: reference?.[r] }, settings).gradient;
  });
  const folded = trainable.map((sample, r) =>
    buildGradientDatum(sample, logprobs[r] as Float32Array, slopes[r] as Float32Array),
  );
  for (const [i, batch] of splitIntoCalls(folded, maxCallTokens).entries()) {
    const body = { forward_backward_input: { data: batch, loss_fn: "importance_sampling" } };
    await send("forward_backward", body, batches.length + i);
  }
  return { logprobs, ...(reference !== undefined && { referenceLogprobs: reference }) };
}
