import type { TrainingSample } from "../../../core/sample.ts";
import type {
  OffPolicyCorrection,
  PolicyLoss,
  UpdateSettings,
} from "../../../core/trainer-backend.ts";

export interface RowLossInput {
  readonly sample: TrainingSample;
  /** The trainer's logprobs of the row now, entry 0 ignored. */
  readonly logprobs: Float32Array;
  /**
   * The trainer's logprobs at the start of the step; they count as constants. One update is one
   * step, so they are the same numbers as `logprobs` unless told apart here.
   */
  readonly startLogprobs?: Float32Array;
  /** Needed when `klCoefficient` is not 0. */
  readonly referenceLogprobs?: Float32Array | undefined;
}

export interface RowLoss {
  /** Σ weight · token loss of this row. */
  readonly loss: number;
  /** d loss / d logprob, length T. */
  readonly gradient: Float32Array;
  /** Trained tokens, by place in the row. */
  readonly trained: readonly number[];
  /** Trained tokens whose ratio was clipped; whose loss the correction dropped. */
  readonly clippedCount: number;
  readonly maskedCount: number;
}

type LossSettings = Pick<UpdateSettings, "loss" | "correction" | "klCoefficient">;

/** e^20 is far beyond any ratio that means something; verl bounds log ratios the same way. */
const maxLogRatio = 20;

const bounded = (logRatio: number): number =>
  Math.max(-maxLogRatio, Math.min(maxLogRatio, logRatio));

const at = (values: Float32Array, index: number): number => values[index] as number;

/**
 * The loss of one row and its gradient. Per token, with A the advantage and w the weight:
 *
 * - `ppo`: −min(r·A, clip(r)·A), and with dual clip no more than −c·A where A < 0
 *   (arXiv 1707.06347, 1912.09729);
 * - `importance-sampling`: −r·A;
 * - `cispo`: −sg(clip(r))·logπ·A (arXiv 2506.13585);
 * - `gspo`: PPO with the response's geometric mean ratio s instead of r; the gradient goes through
 *   each token's own logprob, so advantages may differ per token (GSPO-token, arXiv 2507.18071).
 *
 * r = π/π_sampling. Correction `truncate` multiplies the loss by min(π_start/π_sampling, max); the
 * ratio is then π/π_start, else off-policyness would count twice (the decoupled form,
 * arXiv 2110.00641). Correction `mask` keeps r and drops what lies outside its bounds.
 * A response is a run of tokens with loss mask 1, cut where the sample says that another begins:
 * it is never cut by how rows are cut.
 */
export function policyLossOfRow(input: RowLossInput, settings: LossSettings): RowLoss {
  const { sample, logprobs, referenceLogprobs } = input;
  const start = input.startLogprobs ?? logprobs;
  const gradient = new Float32Array(logprobs.length);
  const trained: number[] = [];
  const total = { loss: 0, clippedCount: 0, maskedCount: 0 };
  for (const [from, to] of responses(sample.lossMask, sample.responseStarts)) {
    const response = { sample, logprobs, start, from, to };
    const factors = correctionFactors(response, settings.correction);
    const isDecoupled = settings.correction.kind === "truncate";
    const base = isDecoupled ? start : sample.samplingLogprobs;
    const sequenceLogRatio = meanLogRatio(logprobs, base, from, to);
    for (let t = from; t < to; t++) {
      const weight = at(sample.weights, t);
      if (weight === 0) continue;
      trained.push(t);
      const factor = factors(t);
      if (factor === 0) total.maskedCount += 1;
      const own = tokenLoss(settings.loss, {
        logprob: at(logprobs, t),
        logRatio: settings.loss.kind === "gspo" ? sequenceLogRatio : at(logprobs, t) - at(base, t),
        advantage: at(sample.advantages, t),
      });
      if (own.isClipped && factor !== 0) total.clippedCount += 1;
      total.loss += weight * factor * own.loss;
      let slope = factor * own.slope;
      if (settings.klCoefficient !== 0 && referenceLogprobs !== undefined) {
        const kl = klToReference(at(logprobs, t), at(referenceLogprobs, t));
        total.loss += weight * settings.klCoefficient * kl.loss;
        slope += settings.klCoefficient * kl.slope;
      }
      gradient[t] = weight * slope;
    }
  }
  return { ...total, gradient, trained };
}

/** Runs of loss mask 1 as [start, end), cut at the starts of responses that follow without a gap. */
export function responses(lossMask: Uint8Array, starts?: Int32Array): [number, number][] {
  const cuts = new Set(starts);
  const runs: [number, number][] = [];
  let t = 0;
  while (t < lossMask.length) {
    const from = t++;
    if (lossMask[from] !== 1) continue;
    while (t < lossMask.length && lossMask[t] === 1 && !cuts.has(t)) t++;
    runs.push([from, t]);
  }
  return runs;
}

function meanLogRatio(now: Float32Array, base: Float32Array, from: number, to: number): number {
  let sum = 0;
  for (let t = from; t < to; t++) sum += at(now, t) - at(base, t);
  return sum / (to - from);
}

interface Response {
  readonly sample: TrainingSample;
  readonly start: Float32Array;
  readonly from: number;
  readonly to: number;
}

/** The constant that multiplies each token's loss; 0 drops it. */
function correctionFactors(
  { sample, start, from, to }: Response,
  correction: OffPolicyCorrection,
): (t: number) => number {
  if (correction.kind === "none") return () => 1;
  const factorOf = (logRatio: number): number => {
    const ratio = Math.exp(bounded(logRatio));
    if (correction.kind === "truncate") return Math.min(ratio, correction.max);
    return ratio >= correction.min && ratio <= correction.max ? 1 : 0;
  };
  if (correction.level === "token") {
    return (t) => factorOf(at(start, t) - at(sample.samplingLogprobs, t));
  }
  const sum = meanLogRatio(start, sample.samplingLogprobs, from, to) * (to - from);
  const factor = factorOf(sum);
  return () => factor;
}

interface TokenLoss {
  readonly loss: number;
  /** d loss / d logprob of this token. */
  readonly slope: number;
  readonly isClipped: boolean;
}

function tokenLoss(
  loss: PolicyLoss,
  token: { readonly logprob: number; readonly logRatio: number; readonly advantage: number },
): TokenLoss {
  const { advantage, logprob } = token;
  const isBounded = Math.abs(token.logRatio) > maxLogRatio;
  const ratio = Math.exp(bounded(token.logRatio));
  // The bounded ratio is a constant, and so has no slope.
  const through = isBounded ? 0 : -ratio * advantage;
  if (loss.kind === "importance-sampling") {
    return { loss: -ratio * advantage, slope: through, isClipped: false };
  }
  const clipped = Math.min(Math.max(ratio, loss.clipLow), loss.clipHigh);
  if (loss.kind === "cispo") {
    const slope = -clipped * advantage;
    return { loss: slope * logprob, slope, isClipped: clipped !== ratio };
  }
  const free = -ratio * advantage;
  const held = -clipped * advantage;
  const dualClip = loss.kind === "ppo" ? loss.dualClip : undefined;
  if (dualClip !== undefined && advantage < 0 && Math.max(free, held) > -dualClip * advantage) {
    return { loss: -dualClip * advantage, slope: 0, isClipped: true };
  }
  if (held > free) return { loss: held, slope: 0, isClipped: true };
  return { loss: free, slope: through, isClipped: false };
}

/** k3 = e^d − d − 1 with d = log π_ref − log π (joschu.net/blog/kl-approx.html). */
function klToReference(logprob: number, reference: number): { loss: number; slope: number } {
  const d = bounded(reference - logprob);
  const isBounded = d !== reference - logprob;
  return { loss: Math.exp(d) - d - 1, slope: isBounded ? 0 : 1 - Math.exp(d) };
}
