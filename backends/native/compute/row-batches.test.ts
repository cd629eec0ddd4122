import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  emptyLogprobs,
  gatherFromRows,
  padBatch,
  planRowBatches,
  scatterToRows,
} from "./row-batches.ts";

const limits = { maxTokens: 64, maxSquares: 1024 };

describe("planRowBatches", () => {
  it.each([
    [[], []],
    [[0, 1], []],
    [
      [5, 1, 8, 3],
      [
        { rowIndexes: [2, 0], length: 8 },
        { rowIndexes: [3], length: 8 },
      ],
    ],
    [[200], [{ rowIndexes: [0], length: 200 }]],
    [
      [30, 30, 30],
      [
        { rowIndexes: [0], length: 32 },
        { rowIndexes: [1], length: 32 },
        { rowIndexes: [2], length: 32 },
      ],
    ],
  ])("%j", (lengths, expected) => {
    expect(planRowBatches(lengths, limits)).toEqual(expected);
  });

  it("takes every row that predicts something once, and stays within the limits", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(90)), (lengths) => {
        const batches = planRowBatches(lengths, limits);
        const taken = batches.flatMap((b) => b.rowIndexes).toSorted((a, b) => a - b);
        const wanted = lengths.flatMap((length, i) => (length > 1 ? [i] : []));
        expect(taken).toEqual(wanted);
        for (const { rowIndexes, length } of batches) {
          for (const i of rowIndexes) expect(lengths[i]).toBeLessThanOrEqual(length);
          if (rowIndexes.length === 1) continue;
          expect(rowIndexes.length * length).toBeLessThanOrEqual(limits.maxTokens);
          expect(rowIndexes.length * length ** 2).toBeLessThanOrEqual(limits.maxSquares);
        }
      }),
    );
  });
});

describe("padBatch and its way back", () => {
  const rows = [Int32Array.of(4, 5, 6), Int32Array.of(), Int32Array.of(7, 8)];
  const batch = { rowIndexes: [2, 0], length: 4 };

  it("names the position that predicts each token", () => {
    expect(padBatch(rows, batch)).toEqual({
      rowCount: 2,
      length: 4,
      tokenIds: Int32Array.of(7, 8, 0, 0, 4, 5, 6, 0),
      predictIndexes: Int32Array.of(0, 4, 5),
      targets: Int32Array.of(8, 5, 6),
    });
  });

  it("puts values back where their tokens are", () => {
    const into = emptyLogprobs(rows);
    scatterToRows(Float32Array.of(-1, -2, -3), batch, into);
    expect(into).toEqual([
      Float32Array.of(Number.NaN, -2, -3),
      Float32Array.of(),
      Float32Array.of(Number.NaN, -1),
    ]);
    expect(gatherFromRows(into, batch)).toEqual(Float32Array.of(-1, -2, -3));
  });
});
