import { describe, expect, it } from "vitest";
import {
  fixtureRows,
  fixtureWeights,
  gradientAt,
  llamaConfig,
  qwenConfig,
} from "./compute-fixtures.ts";
import { reference64Weights, referenceRow } from "./compute-reference.ts";

describe.each([qwenConfig, llamaConfig])("float64 reference, $architecture", (config) => {
  const row = fixtureRows([9])[0] as Int32Array;
  const objective = (weights: ReturnType<typeof reference64Weights>): number =>
    referenceRow(weights, config, row, 0.8).reduce(
      (sum, logprob, t) => (t === 0 ? sum : sum + gradientAt(0, t) * logprob),
      0,
    );

  it("has the gradient that central differences give, in every parameter", () => {
    const weights = reference64Weights(fixtureWeights(config));
    referenceRow(weights, config, row, 0.8, (lp) => lp.map((_, t) => gradientAt(0, t)));
    let checked = 0;
    for (const { data, grad } of weights.values()) {
      // A stride that meets every row and column of a matrix over the parameters.
      for (let i = checked % 5; i < data.length; i += 53) {
        const value = data[i] as number;
        const h = 1e-5;
        data[i] = value + h;
        const above = objective(weights);
        data[i] = value - h;
        const below = objective(weights);
        data[i] = value;
        expect((above - below) / (2 * h)).toBeCloseTo(grad[i] as number, 7);
        checked += 1;
      }
    }
    expect(checked).toBeGreaterThan(100);
  });
});
