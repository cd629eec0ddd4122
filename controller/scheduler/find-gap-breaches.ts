import type { UpdateResult } from "../../core/trainer-backend.ts";
import type { Experiment } from "../experiment/load-experiment.ts";

type GapLimits = Experiment["limits"]["logprobGap"]["stop"];

/** Which limits the gap between sampler and trainer is above; what is no number is above all. */
export function findGapBreaches(
  { meanAbs, p99Abs, kl }: UpdateResult["logprobGap"],
  limits: GapLimits,
  level: "warn" | "stop",
): string[] {
  const values: readonly (readonly [keyof GapLimits, number, string])[] = [
    ["mean", meanAbs, "mean |Δ logprob|"],
    ["p99", p99Abs, "99th percentile of |Δ logprob|"],
    ["kl", kl, "KL estimate"],
  ];
  return values
    .filter(([name, value]) => !(value <= limits[name]))
    .map(
      ([name, value, what]) =>
        `limits.logprobGap.${level}.${name}: sampler and trainer differ, ${what} ${value.toExponential(2)} nats per token, above ${limits[name]}`,
    );
}
