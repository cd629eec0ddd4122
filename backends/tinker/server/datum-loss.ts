import { badInput } from "./request-error.ts";
import type { LossInput, WireDatum } from "./request-schemas.ts";

/** A datum as a row that the native compute trains. Arrays have the row's length T. */
export interface TrainingRow {
  /** `model_input` and the last target. */
  readonly tokenIds: Int32Array;
  /** 1 where the target is the row's own next token, so that its logprob is known. */
  readonly isTarget: Uint8Array;
  /** What multiplies the token's loss: `weights` of cross_entropy, else the advantages. */
  readonly factors: Float64Array;
  /** Of the sampler; 0 where cross_entropy has none. */
  readonly samplingLogprobs: Float64Array;
}

export interface RowResult {
  readonly loss: number;
  /** d loss / d logprob, length T. */
  readonly gradient: Float32Array;
  /** One per target, length T − 1. */
  readonly elementwiseLoss: number[];
}

/**
 * Checks a datum and lays it out as a row.
 *
 * The native compute gives the logprob of a row's own next token only, so a target that is trained
 * must be that token; the others may be anything.
 */
export function buildRow(
  datum: WireDatum,
  index: number,
  loss: LossInput["loss_fn"],
  limits: { readonly vocabSize: number; readonly maxLength: number },
): TrainingRow {
  const where = `data.${index}`;
  const inputs = datum.model_input.chunks.flatMap((chunk) => chunk.tokens);
  const targets = required(datum, "target_tokens", where);
  const length = inputs.length;
  if (length === 0) throw badInput(`${where}.model_input has no tokens`);
  const names =
    loss === "cross_entropy" ? (["weights"] as const) : (["logprobs", "advantages"] as const);
  const arrays = new Map<string, readonly number[]>();
  for (const name of names) {
    const isOptional = name === "weights";
    const data =
      isOptional && !(name in datum.loss_fn_inputs)
        ? Array.from({ length }, () => 1)
        : required(datum, name, where);
    arrays.set(name, data);
  }
  for (const [name, data] of [["target_tokens", targets] as const, ...arrays]) {
    if (data.length !== length) {
      throw badInput(`${where}.${name} has ${data.length} values for ${length} input tokens`);
    }
  }
  const tokenIds = Int32Array.from([...inputs, targets[length - 1] as number]);
  if (tokenIds.length > limits.maxLength) {
    throw badInput(`${where} has ${tokenIds.length} tokens, the model takes ${limits.maxLength}`);
  }
  const wrong = tokenIds.find((id) => id >= limits.vocabSize);
  if (wrong !== undefined) {
    throw badInput(`${where}: token ${wrong} is not in the vocabulary of ${limits.vocabSize}`);
  }
  const factors = new Float64Array(length + 1);
  const samplingLogprobs = new Float64Array(length + 1);
  const isTarget = new Uint8Array(length + 1);
  const factorsOf = arrays.get(loss === "cross_entropy" ? "weights" : "advantages");
  const logprobsOf = arrays.get("logprobs");
  for (let t = 1; t <= length; t++) {
    factors[t] = factorsOf?.[t - 1] as number;
    samplingLogprobs[t] = logprobsOf?.[t - 1] ?? 0;
    isTarget[t] = targets[t - 1] === tokenIds[t] ? 1 : 0;
    if (isTarget[t] === 0 && factors[t] !== 0) {
      throw badInput(
        `${where}.target_tokens.${t - 1} is ${targets[t - 1]}, but the next input token is ${tokenIds[t]}; only next tokens can be trained here`,
      );
    }
  }
  return { tokenIds, isTarget, factors, samplingLogprobs };
}

function required(datum: WireDatum, name: string, where: string): readonly number[] {
  const tensor = datum.loss_fn_inputs[name];
  if (tensor === undefined) throw badInput(`${where}.loss_fn_inputs.${name} is missing`);
  if ((tensor.shape?.length ?? 1) > 1) {
    throw badInput(`${where}.loss_fn_inputs.${name} has more than one dimension`);
  }
  return tensor.data;
}

const knownConfig: Readonly<Record<LossInput["loss_fn"], readonly string[]>> = {
  cross_entropy: [],
  importance_sampling: [],
  ppo: ["clip_low_threshold", "clip_high_threshold"],
  cispo: ["clip_low_threshold", "clip_high_threshold"],
};

export interface ClipBounds {
  readonly low: number;
  readonly high: number;
}

/** Bounds of the ratio itself; PPO's default is 0.8 to 1.2, CISPO's 0 to 4. */
export function readClipBounds({ loss_fn, loss_fn_config }: LossInput): ClipBounds {
  const config = loss_fn_config ?? {};
  const unknown = Object.keys(config).filter((key) => !knownConfig[loss_fn].includes(key));
  if (unknown.length > 0) {
    throw badInput(`loss_fn_config: ${loss_fn} does not know ${unknown.join(", ")}`);
  }
  const [low, high] = loss_fn === "cispo" ? [0, 4] : [0.8, 1.2];
  return {
    low: config["clip_low_threshold"] ?? low,
    high: config["clip_high_threshold"] ?? high,
  };
}

/** Ratios beyond e^±20 mean nothing; they count as constants. */
const maxLogRatio = 20;

/**
 * The summed loss of one row and its gradient, with r = π/π_sampler and A the factor:
 * cross_entropy −w·logπ, importance_sampling −r·A, ppo −min(r·A, clip(r)·A),
 * cispo −sg(clip(r))·A·logπ.
 */
export function rowLoss(
  row: TrainingRow,
  logprobs: Float32Array,
  loss: LossInput["loss_fn"],
  bounds: ClipBounds,
): RowResult {
  const length = row.tokenIds.length;
  const gradient = new Float32Array(length);
  const elementwiseLoss = Array.from({ length: length - 1 }, () => 0);
  let sum = 0;
  for (let t = 1; t < length; t++) {
    const factor = row.factors[t] as number;
    if (factor === 0) continue;
    const logprob = logprobs[t] as number;
    const own = tokenLoss(loss, factor, logprob, row.samplingLogprobs[t] as number, bounds);
    gradient[t] = own.slope;
    elementwiseLoss[t - 1] = own.loss;
    sum += own.loss;
  }
  return { loss: sum, gradient, elementwiseLoss };
}

function tokenLoss(
  loss: LossInput["loss_fn"],
  factor: number,
  logprob: number,
  samplingLogprob: number,
  { low, high }: ClipBounds,
): { readonly loss: number; readonly slope: number } {
  if (loss === "cross_entropy") return { loss: -factor * logprob, slope: -factor };
  const logRatio = logprob - samplingLogprob;
  const isBounded = Math.abs(logRatio) > maxLogRatio;
  const ratio = Math.exp(Math.max(-maxLogRatio, Math.min(maxLogRatio, logRatio)));
  const free = { loss: -ratio * factor, slope: isBounded ? 0 : -ratio * factor };
  if (loss === "importance_sampling") return free;
  const clipped = Math.min(Math.max(ratio, low), high);
  if (loss === "cispo") return { loss: -clipped * factor * logprob, slope: -clipped * factor };
  const held = -clipped * factor;
  return held > free.loss ? { loss: held, slope: 0 } : free;
}
