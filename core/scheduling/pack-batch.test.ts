import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { TrainingSample } from "../sample.ts";
import { fillBatch } from "./fill-batch.ts";
import { type BatchShape, packBatch, shapesForBudget } from "./pack-batch.ts";

describe("shapesForBudget", () => {
  it("fills the budget and halves from there", () => {
    expect(shapesForBudget(256, [64, 128])).toEqual([
      { rowCount: 4, length: 64 },
      { rowCount: 2, length: 64 },
      { rowCount: 1, length: 64 },
      { rowCount: 2, length: 128 },
      { rowCount: 1, length: 128 },
    ]);
  });

  it("has no shape for a length above the budget", () => {
    expect(shapesForBudget(100, [128])).toEqual([]);
  });
});

describe("packBatch", () => {
  it("puts a short row into the free place of a longer batch rather than into its own", () => {
    const shapes = [
      { rowCount: 2, length: 100 },
      { rowCount: 1, length: 100 },
      { rowCount: 2, length: 50 },
    ];
    expect(packBatch([10, 100, 90, 80], shapes)).toEqual([
      { shape: { rowCount: 2, length: 100 }, rowIndexes: [1, 2] },
      { shape: { rowCount: 2, length: 100 }, rowIndexes: [3, 0] },
    ]);
  });

  it("pads the last batch with rows that are marked", () => {
    expect(packBatch([5], [{ rowCount: 4, length: 8 }])).toEqual([
      { shape: { rowCount: 4, length: 8 }, rowIndexes: [0, -1, -1, -1] },
    ]);
  });

  it("packs nothing into nothing", () => {
    expect(packBatch([], [])).toEqual([]);
  });

  it.each([
    [[65], [{ rowCount: 1, length: 64 }], "row 0 has 65 tokens"],
    [[1], [], "longest shape has 0"],
    [[1], [{ rowCount: 0, length: 4 }], "is empty"],
  ] as const)("refuses what cannot be packed whole: %j into %j", (rows, shapes, message) => {
    expect(() => packBatch(rows, shapes)).toThrow(message);
  });

  const shapesArbitrary = fc.array(
    fc.record({
      rowCount: fc.integer({ min: 1, max: 4 }),
      length: fc.integer({ min: 1, max: 20 }),
    }),
    { maxLength: 4 },
  );
  const rowsArbitrary = fc.array(fc.integer({ min: 1, max: 20 }), { maxLength: 7 });

  it("places every row once, whole, and never computes more than one row at a time would", () => {
    fc.assert(
      fc.property(rowsArbitrary, shapesArbitrary, (rows, some) => {
        const shapes = [...some, { rowCount: 1, length: 20 }];
        const batches = packBatch(rows, shapes);
        const placed = batches.flatMap((b) => b.rowIndexes.filter((index) => index >= 0));
        expect(placed.toSorted((a, b) => a - b)).toEqual(rows.map((_, index) => index));
        for (const { shape, rowIndexes } of batches) {
          expect(rowIndexes.length).toBe(shape.rowCount);
          expect(shapes).toContainEqual(shape);
          for (const index of rowIndexes) {
            expect(rows[index] ?? 0).toBeLessThanOrEqual(shape.length);
          }
        }
        const cost = batches.reduce((sum, b) => sum + b.shape.rowCount * b.shape.length, 0);
        expect(cost).toBe(
          leastCost(
            rows.toSorted((a, b) => b - a),
            shapes,
          ),
        );
      }),
      { numRuns: 300 },
    );
  });
});

/** Every way to cut the sorted rows, tried by recursion. */
function leastCost(sorted: readonly number[], shapes: readonly BatchShape[]): number {
  const longest = sorted[0];
  if (longest === undefined) return 0;
  const costs = shapes
    .filter((shape) => shape.length >= longest)
    .map((s) => s.rowCount * s.length + leastCost(sorted.slice(s.rowCount), shapes));
  return Math.min(...costs);
}

describe("fillBatch", () => {
  it("keeps the sum of weights and gives padding none", () => {
    const sample = (length: number, weight: number): TrainingSample => ({
      rolloutId: "r",
      attemptId: "a",
      groupId: "g",
      callIds: [],
      tokenIds: new Int32Array(length).fill(9),
      lossMask: Uint8Array.from({ length }, (_, t) => (t === 0 ? 0 : 1)),
      samplingLogprobs: Float32Array.from({ length }, (_, t) => (t === 0 ? Number.NaN : -0.5)),
      policyVersions: new Int32Array(length),
      advantages: new Float32Array(length).fill(2),
      weights: new Float32Array(length).fill(weight),
    });
    const samples = [sample(3, 0.25), sample(2, 0.5)];
    const [packed] = packBatch([3, 2], [{ rowCount: 3, length: 4 }]);
    expect(packed).toBeDefined();
    if (packed === undefined) return;
    const batch = fillBatch(samples, packed, 1);
    expect([...batch.weights]).toEqual([0, 0.25, 0.25, 0, 0, 0.5, 0, 0, 0, 0, 0, 0]);
    expect([...batch.tokenIds]).toEqual([9, 9, 9, 1, 9, 9, 1, 1, 1, 1, 1, 1]);
    expect([...batch.samplingLogprobs]).toEqual([0, -0.5, -0.5, 0, 0, -0.5, 0, 0, 0, 0, 0, 0]);
    expect(batch.advantages[0]).toBe(0);
  });
});
