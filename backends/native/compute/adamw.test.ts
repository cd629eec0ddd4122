import { describe, expect, it } from "vitest";
import { applyAdamW, clipFactor, gradientNorm } from "./adamw.ts";

const settings = { learningRate: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0.5 };

describe("applyAdamW", () => {
  it("moves by the learning rate on its first step, after decay", () => {
    const state = {
      weights: Float32Array.of(2, 2, 2),
      firstMoments: new Float32Array(3),
      secondMoments: new Float32Array(3),
    };
    applyAdamW(state, Float32Array.of(3, -0.01, 0), 1, 1, settings);
    // Bias correction makes the first step lr · sign(g); decay takes 2 · 0.1 · 0.5.
    expect(state.weights[0]).toBeCloseTo(2 - 0.1 - 0.1, 5);
    expect(state.weights[1]).toBeCloseTo(2 - 0.1 + 0.1, 5);
    expect(state.weights[2]).toBeCloseTo(2 - 0.1, 6);
    expect(state.firstMoments[0]).toBeCloseTo(0.3, 6);
    expect(state.secondMoments[0]).toBeCloseTo(0.09, 6);
  });
});

describe("clipping", () => {
  it("takes the norm over everything", () => {
    expect(gradientNorm(Float32Array.of(3, 0, 4))).toBe(5);
  });
  it.each([
    [5, 1, 1 / 5.000001],
    [0.5, 1, 1],
    [5, undefined, 1],
    [0, 1, 1],
  ])("of norm %d to %s multiplies by %d", (norm, maximum, expected) => {
    expect(clipFactor(norm, maximum)).toBeCloseTo(expected, 9);
  });
  it("refuses a norm that is not finite", () => {
    expect(() => gradientNorm(Float32Array.of(1, Number.NaN))).toThrowError(
      expect.objectContaining({ reason: "gradient-not-finite" }),
    );
    expect(() => gradientNorm(Float32Array.of(Number.POSITIVE_INFINITY))).toThrow(/Infinity/);
  });
});
