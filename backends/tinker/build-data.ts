import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import type { AdamParams, Datum, ForwardBackwardInput, TensorData } from "./tinker-wire.ts";

type LossInput = Pick<ForwardBackwardInput, "loss_fn" | "loss_fn_config">;

/**
 * The row as Tinker takes it: targets shifted by one, and the weight folded into the advantage.
 * Its losses are sums over tokens and linear in the advantage, so Σ w·loss(A) = Σ loss(w·A) for
 * weights that are not negative. Positions that are not trained have advantage 0.
 */
export function buildDatum(sample: TrainingSample): Datum {
  const { tokenIds, lossMask, samplingLogprobs, advantages, weights } = sample;
  const length = tokenIds.length - 1;
  const isTrained = (t: number): boolean => lossMask[t] === 1 && weights[t] !== 0;
  const shifted = (valueOf: (t: number) => number): number[] =>
    Array.from({ length }, (_, i) => (isTrained(i + 1) ? valueOf(i + 1) : 0));
  return {
    model_input: { chunks: [{ type: "encoded_text", tokens: Array.from(tokenIds.slice(0, -1)) }] },
    loss_fn_inputs: {
      target_tokens: tensor(Array.from(tokenIds.slice(1)), "int64"),
      // A logprob is never above 0; a sampler's rounding may be.
      logprobs: tensor(
        shifted((t) => Math.min(0, samplingLogprobs[t] as number)),
        "float32",
      ),
      advantages: tensor(
        shifted((t) => (advantages[t] as number) * (weights[t] as number)),
        "float32",
      ),
    },
  };
}

const tensor = (data: number[], dtype: TensorData["dtype"]): TensorData => ({
  data,
  dtype,
  shape: [data.length],
});

/** The loss by Tinker's names; its clip thresholds are bounds of the ratio, as ours are. */
export function buildLoss({ loss }: Pick<UpdateSettings, "loss">): LossInput {
  switch (loss.kind) {
    case "importance-sampling":
      return { loss_fn: "importance_sampling" };
    case "ppo":
    case "cispo":
      return {
        loss_fn: loss.kind,
        loss_fn_config: { clip_low_threshold: loss.clipLow, clip_high_threshold: loss.clipHigh },
      };
    case "gspo":
      throw unsupported("algorithm.loss.kind gspo");
  }
}

export function buildAdamParams(settings: UpdateSettings): AdamParams {
  return {
    learning_rate: settings.learningRate,
    beta1: settings.beta1,
    beta2: settings.beta2,
    eps: settings.epsilon,
    weight_decay: settings.weightDecay,
    grad_clip_norm: settings.maxGradNorm ?? 0,
  };
}

/** Refuses what the protocol has no word for; nothing is left out silently. */
export function checkTinkerSettings(settings: UpdateSettings): void {
  const { loss, correction, klCoefficient, temperature } = settings;
  if (loss.kind === "gspo") throw unsupported("algorithm.loss.kind gspo");
  if (loss.kind === "ppo" && loss.dualClip !== undefined)
    throw unsupported("algorithm.loss.dualClip");
  if (correction.kind !== "none") throw unsupported(`algorithm.correction.kind ${correction.kind}`);
  if (klCoefficient !== 0) throw unsupported("algorithm.klCoefficient above 0");
  if (temperature !== 1) throw unsupported(`sampling.train.temperature ${temperature}, not 1`);
}

const unsupported = (what: string): OutriggerError =>
  new OutriggerError("update-settings-invalid", `a Tinker server cannot do ${what}`, {
    origin: "user",
    hint: "Change the experiment, or use the native backend.",
  });

/** Rows in the given order, in calls of at most `maxTokens` tokens; a longer row is alone. */
export function splitIntoCalls(data: readonly Datum[], maxTokens: number): Datum[][] {
  const calls: Datum[][] = [];
  let room = 0;
  for (const datum of data) {
    const size = datum.model_input.chunks[0]?.tokens.length ?? 0;
    if (calls.length === 0 || size > room) {
      calls.push([]);
      room = maxTokens;
    }
    (calls.at(-1) as Datum[]).push(datum);
    room -= size;
  }
  return calls;
}
