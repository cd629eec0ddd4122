import fc from "fast-check";
import { expect, it } from "vitest";
import { createLogprobGapCollector } from "./logprob-gap.ts";
import { microBatches } from "./micro-batches.ts";

it("puts every row into exactly one batch within the padded budget", () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 50 }), { maxLength: 30 }),
      fc.integer({ min: 1, max: 120 }),
      (lengths, budget) => {
        const batches = microBatches(lengths, budget);
        expect(batches.flat().sort((a, b) => a - b)).toEqual(lengths.map((_, i) => i));
        for (const batch of batches) {
          const widest = Math.max(...batch.map((row) => lengths[row]!));
          if (batch.length > 1) expect(widest * batch.length).toBeLessThanOrEqual(budget);
        }
      },
    ),
  );
});

it("reports the gap between sampler and trainer", () => {
  const gap = createLogprobGapCollector();
  for (let i = 0; i < 100; i++) gap.add(-1, -1 + (i === 0 ? 0.5 : 0.01));
  const result = gap.result();
  expect(result.meanAbs).toBeCloseTo((0.5 + 99 * 0.01) / 100, 12);
  expect(result.p99Abs).toBeCloseTo(0.01, 12);
  expect(result.maxAbs).toBeCloseTo(0.5, 12);
  const k3 = (d: number): number => Math.exp(d) - 1 - d;
  expect(result.kl).toBeCloseTo((k3(0.5) + 99 * k3(0.01)) / 100, 12);
  expect(result.meanRatio).toBeCloseTo((Math.exp(0.5) + 99 * Math.exp(0.01)) / 100, 12);
  expect(createLogprobGapCollector().result().meanRatio).toBe(1);
});
