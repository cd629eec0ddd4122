import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { policyLossOfRow } from "../../../backends/native/training/policy-loss.ts";
import type { TrainingSample } from "../../../core/sample.ts";
import type { OffPolicyCorrection, PolicyLoss } from "../../../core/trainer-backend.ts";

interface Golden {
  readonly row: Record<
    "mask" | "sampling" | "start" | "reference" | "weights" | "advantages",
    number[]
  >;
  readonly cases: {
    readonly loss: PolicyLoss;
    readonly correction: OffPolicyCorrection;
    readonly klCoefficient: number;
    readonly value: number;
    readonly gradient: number[];
  }[];
}

// Made by make_golden.py in this folder, with PyTorch's autograd.
const { row, cases } = JSON.parse(
  readFileSync(join(import.meta.dirname, "vectors.json"), "utf8"),
) as Golden;

const sample: TrainingSample = {
  rolloutId: "r",
  attemptId: "0",
  groupId: "g",
  tokenIds: new Int32Array(row.mask.length),
  lossMask: Uint8Array.from(row.mask),
  samplingLogprobs: Float32Array.from(row.sampling, (v, t) => (row.mask[t] === 1 ? v : Number.NaN)),
  policyVersions: new Int32Array(row.mask.length),
  advantages: Float32Array.from(row.advantages),
  weights: Float32Array.from(row.weights),
  callIds: [],
};

it("has the losses and gradients that PyTorch gives", () => {
  expect(cases).toHaveLength(50);
  for (const { loss, correction, klCoefficient, value, gradient } of cases) {
    const own = policyLossOfRow(
      {
        sample,
        logprobs: Float32Array.from(row.start),
        referenceLogprobs: Float32Array.from(row.reference),
      },
      { loss, correction, klCoefficient },
    );
    const what = JSON.stringify({ loss, correction, klCoefficient });
    expect(Math.abs(own.loss - value), what).toBeLessThan(1e-6);
    gradient.forEach((wanted, t) => {
      expect(Math.abs(own.gradient[t]! - wanted), `${what} at ${t}`).toBeLessThan(1e-6);
    });
  }
});
