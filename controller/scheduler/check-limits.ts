import type { RunCapture } from "../../core/capture-report.ts";
import {
  type CaptureThresholds,
  findThresholdBreaches,
} from "../../core/capture-report-thresholds.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import { findGapBreaches } from "./find-gap-breaches.ts";
import type { StepMetrics } from "./step-metrics.ts";

export interface LimitVerdict {
  readonly warnings: readonly string[];
  /** Why the run must stop; empty when it may go on. */
  readonly stops: readonly string[];
}

type FractionLimit =
  | "maxIncompleteFraction"
  | "maxNeverCalledFraction"
  | "maxInfraErrorFraction"
  | "maxMissingRewardFraction";

/**
 * Holds one step against the experiment's limits. Pure; each line names the limit's path.
 * `captured` is the step's capture report; `limits.capture` is checked against it.
 */
export function checkLimits(
  metrics: StepMetrics,
  limits: Experiment["limits"],
  captured?: RunCapture,
): LimitVerdict {
  const { rollouts, capture, logprobGap } = metrics;
  const share = (count: number): number => (rollouts.total === 0 ? 0 : count / rollouts.total);
  const incomplete = Object.values(capture.calls.incomplete).reduce((sum, n) => sum + n, 0);
  const calls = capture.calls.samplings;
  const stops: string[] = [];
  const above = (name: FractionLimit, value: number, what: string): void => {
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
  stops.push(...findGapBreaches(logprobGap, limits.logprobGap.stop, "stop"));
  if (captured !== undefined) stops.push(...captureStops(captured, limits.capture));
  // With staleness the policy itself has moved on: the gap is then no sign of a fault.
  const isFresh = metrics.staleness.max === 0;
  const warnings =
    isFresh && stops.length === 0
      ? findGapBreaches(logprobGap, limits.logprobGap.warn, "warn").map(
          (line) => `${line} (staleness 0)`,
        )
      : [];
  return { warnings, stops };
}

function captureStops(captured: RunCapture, limits: Experiment["limits"]["capture"]): string[] {
  const thresholds: CaptureThresholds = Object.fromEntries(
    Object.entries(limits).filter(([, limit]) => limit !== undefined),
  );
  return findThresholdBreaches(captured, thresholds).map(
    ({ threshold, message }) => `limits.capture.${threshold}: ${message}`,
  );
}

function percent(value: number): string {
  return `${(100 * value).toFixed(1)} %`;
}

function describe(counts: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .map(([reason, count]) => `${reason}: ${count}`)
    .join(", ");
}
