import type { UpdateResult } from "../../../core/trainer-backend.ts";

export interface LogprobGapCollector {
  /** One trained token: the engine's logprob when sampled, the trainer's before the step. */
  add(samplingLogprob: number, logprob: number): void;
  result(): UpdateResult["logprobGap"] & { readonly meanRatio: number };
}

/** Sampler against trainer: every absolute difference is kept, so the 99th percentile is exact. */
export function createLogprobGapCollector(): LogprobGapCollector {
  const gaps: number[] = [];
  let sum = 0;
  let kl = 0;
  let ratios = 0;
  return {
    add: (sampling, logprob) => {
      const d = logprob - sampling;
      gaps.push(Math.abs(d));
      sum += Math.abs(d);
      ratios += Math.exp(d);
      // k3 of KL(sampling ‖ policy); expm1 keeps the digits of small gaps.
      kl += Math.expm1(d) - d;
    },
    result: () => {
      const count = gaps.length;
      if (count === 0) return { meanAbs: 0, p99Abs: 0, maxAbs: 0, kl: 0, meanRatio: 1 };
      const sorted = Float64Array.from(gaps).sort();
      return {
        meanAbs: sum / count,
        p99Abs: sorted[Math.ceil(0.99 * count) - 1] as number,
        maxAbs: sorted[count - 1] as number,
        kl: kl / count,
        meanRatio: ratios / count,
      };
    },
  };
}
