import {
  buildRunCapture,
  type RolloutCapture,
  type RunCapture,
  sumCaptureReports,
} from "../capture-report.ts";
import { assembleAttempt } from "./assemble-attempt.ts";
import type { AssembledSample } from "./assembled-sample.ts";
import type { AssemblyOptions } from "./assembly-options.ts";
import type { CapturedCall } from "./captured-call.ts";

export interface BuildSamplesOptions extends AssemblyOptions {
  /**
   * The accepted attempt of each rollout; a rollout without one gives no sample. Where undefined
   * (offline traces that do not say), every attempt is assembled, each for itself.
   */
  readonly acceptedAttempts?: ReadonlyMap<string, string>;
  /** Rollouts that should have calls: those without any are counted as zero capture. */
  readonly expectedRollouts?: Iterable<string>;
  /** Rollouts whose reward is known, for the report. */
  readonly rewardedRollouts?: ReadonlySet<string>;
}

export interface BuiltSamples {
  readonly samples: readonly AssembledSample[];
  readonly report: RunCapture;
}

/**
 * Turns the calls of many rollouts, in any order, into training rows and a capture report. Rows
 * come in order of rollout id, attempt id and then time; attempts never share a row.
 */
export function buildSamples(
  calls: Iterable<CapturedCall>,
  options: BuildSamplesOptions = {},
): BuiltSamples {
  const byRollout = groupByAttempt(calls);
  for (const rolloutId of options.expectedRollouts ?? []) {
    if (!byRollout.has(rolloutId)) byRollout.set(rolloutId, new Map());
  }
  const samples: AssembledSample[] = [];
  const rollouts: RolloutCapture[] = [];
  for (const [rolloutId, attempts] of sortByKey(byRollout)) {
    const built = buildRollout(rolloutId, attempts, options);
    for (const sample of built.samples) samples.push(sample);
    rollouts.push(built.capture);
  }
  return { samples, report: buildRunCapture(rollouts) };
}

function buildRollout(
  rolloutId: string,
  attempts: ReadonlyMap<string, CapturedCall[]>,
  options: BuildSamplesOptions,
): { readonly samples: readonly AssembledSample[]; readonly capture: RolloutCapture } {
  const { acceptedAttempts, rewardedRollouts } = options;
  const assembled = sortByKey(attempts)
    .filter(([id]) => acceptedAttempts === undefined || acceptedAttempts.get(rolloutId) === id)
    .map(([id, calls]) => ({ id, ...assembleAttempt(calls, options) }));
  const report = sumCaptureReports(assembled.map((attempt) => attempt.report));
  const capture = {
    rolloutId,
    attemptIds: assembled.map((attempt) => attempt.id),
    isZeroCapture: report.tokens.trained === 0,
    hasReward: rewardedRollouts === undefined ? null : rewardedRollouts.has(rolloutId),
    report,
  };
  return { samples: assembled.flatMap((attempt) => attempt.samples), capture };
}

function groupByAttempt(calls: Iterable<CapturedCall>): Map<string, Map<string, CapturedCall[]>> {
  const byRollout = new Map<string, Map<string, CapturedCall[]>>();
  for (const call of calls) {
    const attempts = byRollout.get(call.rolloutId) ?? new Map<string, CapturedCall[]>();
    const known = attempts.get(call.attemptId);
    if (known === undefined) attempts.set(call.attemptId, [call]);
    else known.push(call);
    byRollout.set(call.rolloutId, attempts);
  }
  return byRollout;
}

function sortByKey<T>(map: ReadonlyMap<string, T>): [string, T][] {
  return [...map].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
}
