import type { RandomStream } from "./random-stream.ts";

export interface SamplingParameters {
  /** 0 takes the most likely token. */
  readonly temperature: number;
  /** Nucleus: the smallest set of most likely tokens whose probabilities reach it; 1 is off. */
  readonly topP: number;
  /** Only the k most likely tokens; 0 is off. */
  readonly topK: number;
  /** How many alternatives to report; undefined reports none. */
  readonly topLogprobs?: number | undefined;
}

export interface TokenLogprob {
  readonly id: number;
  readonly logprob: number;
}

export interface SampledChoice extends TokenLogprob {
  readonly top: readonly TokenLogprob[];
}

/**
 * Draws a token from logits [vocabSize]. The logprob is of softmax(logits / temperature) over the
 * whole vocabulary, before top-k and top-p cut it: the distribution that the trainer computes. At
 * temperature 0 it is of temperature 1. Throws a RangeError on logits that are not finite.
 */
export function sampleToken(
  logits: Float32Array,
  parameters: SamplingParameters,
  random: RandomStream,
): SampledChoice {
  const isGreedy = parameters.temperature === 0;
  const scale = isGreedy ? 1 : 1 / parameters.temperature;
  const best = argmax(logits);
  const highest = (logits[best] as number) * scale;
  let total = 0;
  for (let i = 0; i < logits.length; i++)
    total += Math.exp((logits[i] as number) * scale - highest);
  if (!Number.isFinite(total)) throw new RangeError("the model's logits are not finite");
  const logNormaliser = highest + Math.log(total);
  const logprobOf = (id: number): number => (logits[id] as number) * scale - logNormaliser;
  const id = isGreedy ? best : draw(logits, scale, highest, total, parameters, random);
  const topCount = parameters.topLogprobs ?? 0;
  const top = topCount === 0 ? [] : mostLikely(logits, topCount);
  return {
    id,
    logprob: logprobOf(id),
    top: Array.from(top, (t) => ({ id: t, logprob: logprobOf(t) })),
  };
}

/** The lowest id of the highest logit. */
function argmax(logits: Float32Array): number {
  let best = 0;
  for (let i = 1; i < logits.length; i++) {
    if ((logits[i] as number) > (logits[best] as number)) best = i;
  }
  return best;
}

function draw(
  logits: Float32Array,
  scale: number,
  highest: number,
  total: number,
  { topK, topP }: SamplingParameters,
  random: RandomStream,
): number {
  const massOf = (id: number): number => Math.exp((logits[id] as number) * scale - highest);
  if (topK === 0 && topP >= 1) {
    let left = random() * total;
    for (let i = 0; i < logits.length; i++) {
      left -= massOf(i);
      if (left < 0) return i;
    }
    return argmax(logits);
  }
  const kept = mostLikely(logits, topK === 0 ? logits.length : topK);
  let keptMass = 0;
  for (const id of kept) keptMass += massOf(id);
  let count = 0;
  let mass = 0;
  while (count < kept.length && (count === 0 || mass < topP * keptMass)) {
    mass += massOf(kept[count++] as number);
  }
  let left = random() * mass;
  for (let i = 0; i < count; i++) {
    left -= massOf(kept[i] as number);
    if (left < 0) return kept[i] as number;
  }
  return kept[0] as number;
}

/** Ids by falling logit, lower id first among equals. */
function mostLikely(logits: Float32Array, count: number): Uint32Array {
  const before = (a: number, b: number): number =>
    (logits[b] as number) - (logits[a] as number) || a - b;
  if (count > 64) {
    return Uint32Array.from(logits.keys()).sort(before).subarray(0, count);
  }
  // Insertion into a short list beats sorting a large vocabulary.
  const top: number[] = [];
  for (let i = 0; i < logits.length; i++) {
    if (top.length === count && before(top[count - 1] as number, i) < 0) continue;
    let at = top.length;
    while (at > 0 && before(i, top[at - 1] as number) < 0) at--;
    top.splice(at, 0, i);
    if (top.length > count) top.pop();
  }
  return Uint32Array.from(top);
}
