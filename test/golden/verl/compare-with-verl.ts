import { expect } from "vitest";
import { policyLossOfRow } from "../../../backends/native/training/policy-loss.ts";
import {
  type VerlEstimator,
  verlRowAdvantages,
} from "../../../core/advantages/verl-row-advantages.ts";
import type { AssembledSample } from "../../../core/assembly/assembled-sample.ts";
import { buildCall } from "../../../core/assembly/testing/build-call.ts";
import type { PolicyLoss } from "../../../core/trainer-backend.ts";
import { tokenWeights } from "../../../core/weights/token-weights.ts";
import type { Weighting } from "../../../core/weights/weighting.ts";

/** What `make_vectors.py` prints. */
export interface VerlVectors {
  readonly source: string;
  readonly batches: readonly VerlBatch[];
  readonly policyLosses: readonly VerlPolicyLosses[];
}

/** Rows of one response each, and what verl's policy losses (mean over tokens) say of them. */
export interface VerlPolicyLosses {
  readonly mask: readonly (readonly number[])[];
  readonly sampling: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
  readonly advantages: readonly (readonly number[])[];
  readonly cases: readonly {
    readonly loss: unknown;
    readonly value: number;
    readonly gradient: readonly (readonly number[])[];
  }[];
}

export interface VerlBatch {
  readonly groups: readonly string[];
  readonly mask: readonly (readonly number[])[];
  readonly tokenRewards: readonly (readonly number[])[];
  readonly losses: readonly (readonly number[])[];
  /** By estimator; a discount other than 1 stands behind the name. */
  readonly advantages: Readonly<Record<string, readonly (readonly number[])[]>>;
  readonly aggregations: Readonly<Record<string, number>>;
}

export const tolerance = 1e-6;

/** Largest difference between our row-based estimators and verl's. */
export function advantageError(batch: VerlBatch): number {
  let worst = 0;
  for (const [name, expected] of Object.entries(batch.advantages)) {
    const [estimator, , gamma] = name.split(" ");
    const rows = batch.groups.map((groupId, i) => ({
      groupId,
      tokenRewards: batch.tokenRewards[i] as readonly number[],
      mask: batch.mask[i] as readonly number[],
    }));
    const actual = verlRowAdvantages(rows, {
      estimator: estimator as VerlEstimator,
      gamma: gamma === undefined ? 1 : Number(gamma),
    });
    expected.forEach((row, i) => {
      row.forEach((value, t) => {
        worst = Math.max(worst, Math.abs(value - (actual[i]?.[t] as number)));
      });
    });
  }
  return worst;
}

/** Largest difference between Σ weight · loss and verl's aggregated loss, relative to its size. */
export function aggregationError(batch: VerlBatch): number {
  const samples = batch.mask.map(buildRow);
  const width = batch.mask[0]?.length ?? 0;
  const weightings: readonly Weighting[] = [
    { kind: "verl-token-mean" },
    { kind: "verl-token-sum" },
    { kind: "verl-seq-mean-token-sum" },
    { kind: "verl-seq-mean-token-sum-norm", normTokens: width },
    { kind: "verl-seq-mean-token-mean" },
  ];
  let worst = 0;
  for (const weighting of weightings) {
    const expected = batch.aggregations[weighting.kind.replace("verl-", "")] as number;
    const weights = tokenWeights(samples, weighting);
    let actual = 0;
    batch.losses.forEach((row, i) => {
      row.forEach((loss, t) => {
        actual += loss * (weights[i]?.[t] as number);
      });
    });
    worst = Math.max(worst, Math.abs(actual - expected) / Math.max(1, Math.abs(expected)));
  }
  return worst;
}

/** Largest difference between the native backend's losses and gradients and verl's. */
export function policyLossError(losses: VerlPolicyLosses): number {
  const samples = losses.mask.map(buildRow);
  const weights = tokenWeights(samples, { kind: "verl-token-mean" });
  let worst = 0;
  for (const { loss, value, gradient } of losses.cases) {
    let total = 0;
    samples.forEach((sample, i) => {
      const row = policyLossOfRow(
        {
          sample: {
            ...sample,
            groupId: "g",
            samplingLogprobs: Float32Array.from(losses.sampling[i] ?? []),
            advantages: Float32Array.from(losses.advantages[i] ?? []),
            weights: weights[i] as Float32Array,
          },
          logprobs: Float32Array.from(losses.logprobs[i] ?? []),
        },
        { loss: loss as PolicyLoss, correction: { kind: "none" }, klCoefficient: 0 },
      );
      total += row.loss;
      gradient[i]?.forEach((slope, t) => {
        worst = Math.max(worst, Math.abs(slope - (row.gradient[t] as number)));
      });
    });
    worst = Math.max(worst, Math.abs(total - value));
  }
  return worst;
}

/** A row whose runs of masked tokens are the responses of calls. */
function buildRow(mask: readonly number[], row: number): AssembledSample {
  const spans = mask.flatMap((bit, start) => {
    if (bit === 0 || mask[start - 1] === 1) return [];
    const length = mask.slice(start).findIndex((next) => next === 0);
    const end = length < 0 ? mask.length : start + length;
    return [
      { call: buildCall(`c${start}`, [1], [2]), start, end, observationStart: 0, turnIndex: start },
    ];
  });
  return {
    rolloutId: `r${row}`,
    attemptId: "a",
    tokenIds: new Int32Array(mask.length),
    lossMask: Uint8Array.from(mask),
    samplingLogprobs: new Float32Array(mask.length),
    policyVersions: new Int32Array(mask.length),
    callIds: spans.map((span) => span.call.callId),
    spans,
  };
}

export function expectAgreement(vectors: VerlVectors): void {
  for (const batch of vectors.batches) {
    expect(advantageError(batch)).toBeLessThan(tolerance);
    expect(aggregationError(batch)).toBeLessThan(tolerance);
  }
  for (const losses of vectors.policyLosses) {
    expect(policyLossError(losses)).toBeLessThan(tolerance);
  }
}
