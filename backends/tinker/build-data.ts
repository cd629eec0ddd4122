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
  const { samplingLogprobs, advantages, weights } = sample;
  return layOut(sample, {
    // A logprob is never above 0; a sampler's rounding may be.
    logprob: (t) => Math.min(0, samplingLogprobs[t] as number),
    advantage: (t) => (advantages[t] as number) * (weights[t] as number),
  });
}

/**
 * The row for `importance_sampling` at the very weights that `logprobs` are of: its ratio is 1, so
 * the slope at each token is minus the advantage, here the wanted one (d loss / d logprob).
 */
export function buildGradientDatum(
  sample: TrainingSample,
  logprobs: Float32Array,
  slopes: Float32Array,
): Datum {
  return layOut(sample, {
    logprob: (t) => logprobs[t] as number,
    advantage: (t) => -(slopes[t] as number),
  });
}

function layOut(
  { tokenIds, lossMask, weights }: TrainingSample,
  token: {
    readonly logprob: (t: number) => number;
    readonly advantage: (t: number) => number;
  },
): Datum {
  const length = tokenIds.length - 1;
  const isTrained = (t: number): boolean => lossMask[t] === 1 && weights[t] !== 0;
  const shifted = (valueOf: (t: number) => number): number[] =>
    Array.from({ length }, (_, i) => (isTrained(i + 1) ? valueOf(i + 1) : 0));
  return {
    model_input: { chunks: [{ type: "encoded_text", tokens: Array.from(tokenIds.slice(0, -1)) }] },
    loss_fn_inputs: {
      target_tokens: tensor(Array.from(tokenIds.slice(1)), "int64"),
      logprobs: tensor(shifted(token.logprob), "float32"),
      advantages: tensor(shifted(token.advantage), "float32"),
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
      throw new Error("no server has gspo; its gradient is worked out here");
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

/** A server computes at temperature 1; what else it has no word for is worked out here. */
export function checkTinkerSettings({ temperature }: UpdateSettings): void {
  if (temperature === 1) return;
  throw new OutriggerError(
    "update-settings-invalid",
    `a Tinker server cannot do sampling.train.temperature ${temperature}, not 1`,
    { origin: "user", hint: "Change the experiment, or use the native backend." },
  );
}

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
