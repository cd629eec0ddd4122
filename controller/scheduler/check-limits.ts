import type { Experiment } from "../experiment/load-experiment.ts";
import type { StepMetrics } from "./step-metrics.ts";

export interface LimitVerdict {
  readonly warnings: readonly string[];
  /** Why the run must stop; empty when it may go on. */
  readonly stops: readonly string[];
}

/** Holds one step against the experiment's limits. Pure; each line names the limit's path. */
export function checkLimits(metrics: StepMetrics, limits: Experiment["limits"]): LimitVerdict {
  const { rollouts, capture, logprobGap } = metrics;
  const share = (count: number): number => (rollouts.total === 0 ? 0 : count / rollouts.total);
  const incomplete = Object.values(capture.calls.incomplete).reduce((sum, n) => sum + n, 0);
  const calls = capture.calls.samplings;
  const stops: string[] = [];
  const above = (name: keyof Experiment["limits"], value: number, what: string): void => {
    if (value > limits[name]) {
      stops.push(`limits.${name}: ${what} is ${percent(value)}, above ${percent(limits[name])}`);
    }
  };
  above(
    "maxIncompleteFraction",
    calls === 0 ? 0 : incomplete / calls,
    `the share of calls without complete token ids and logprobs (${describe(capture.calls.incomplete)})`,
  );
  above(
    "maxNeverCalledFraction",
    share(rollouts.byEndReason["never-called"] ?? 0),
    "the share of rollouts whose harness never called the model",
  );
  above(
    "maxInfraErrorFraction",
    share(rollouts.byEndReason["infra-error"] ?? 0),
    "the share of rollouts lost to the infrastructure",
  );
  // What is masked by policy has no reward by design; the others should have one.
  const masked = ["never-called", "infra-error", "evicted", "cancelled", "rejected"].reduce(
    (sum, reason) => sum + (rollouts.byEndReason[reason] ?? 0),
    0,
  );
  const wanted = rollouts.total - masked;
  above(
    "maxMissingRewardFraction",
    wanted <= 0 ? 0 : Math.max(0, wanted - rollouts.rewarded) / wanted,
    "the share of ended rollouts without a reward",
  );
  if (!(logprobGap.meanAbs <= limits.logprobGapStop)) {
    stops.push(
      `limits.logprobGapStop: sampler and trainer differ by ${logprobGap.meanAbs.toExponential(2)} per token on average, above ${limits.logprobGapStop}`,
    );
  }
  // With staleness the policy itself has moved on: the gap is then no sign of a fault.
  const isFresh = metrics.staleness.max === 0;
  const isGapWide = isFresh && stops.length === 0 && logprobGap.meanAbs > limits.logprobGapWarn;
  const warnings = isGapWide
    ? [
        `limits.logprobGapWarn: sampler and trainer differ by ${logprobGap.meanAbs.toExponential(2)} per token on average at staleness 0`,
      ]
    : [];
  return { warnings, stops };
}

function percent(value: number): string {
  return `${(100 * value).toFixed(1)} %`;
}

function describe(counts: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .map(([reason, count]) => `${reason}: ${count}`)
    .join(", ");
}
