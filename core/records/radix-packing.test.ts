import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { groupedBits, idGrouping, packRadix, unpackRadix } from "./radix-packing.ts";

describe("radix packing", () => {
  it.each([
    // 3 ids of 151,936 make a number below 2^51.7.
    ["a vocabulary of 151,936", 151_935, 3, 52],
    ["a vocabulary of 2^17", 131_071, 3, 51],
    ["a vocabulary of 2^18", 262_143, 2, 36],
    ["two ids", 1, 53, 53],
    ["every 32-bit number", 2 ** 32 - 1, 1, 32],
  ])("%s: the largest %d goes in groups of %d, %d bits each", (_, largest, size, bits) => {
    const grouping = idGrouping(largest);
    expect(grouping.groupSize).toBe(size);
    expect(groupedBits(size, grouping)).toBe(bits);
    expect(groupedBits(10 * size, grouping)).toBe(10 * bits);
  });

  it("reads the first id as the lowest digit", () => {
    expect([...packRadix(Int32Array.of(2, 1), idGrouping(9))]).toEqual([12]);
  });

  it("gives back what was packed, the largest in every place too", () => {
    const largest = fc.oneof(
      fc.integer({ min: 1, max: 2 ** 32 - 1 }),
      fc.integer({ min: 1, max: 300_000 }),
      fc.integer({ min: 1, max: 32 }).map((bits) => 2 ** bits - 1),
    );
    fc.assert(
      fc.property(largest, fc.array(fc.double({ min: 0, max: 1, noNaN: true })), (top, parts) => {
        const ids = Int32Array.from(parts, (part) => Math.round(part * top));
        const grouping = idGrouping(top);
        const bytes = packRadix(ids, grouping);
        expect(bytes.length).toBe(Math.ceil(groupedBits(ids.length, grouping) / 8));
        expect(unpackRadix(bytes, ids.length, grouping)).toEqual(ids);
      }),
      { numRuns: 500 },
    );
  });

  it.each([
    ["too few bytes", new Uint8Array(2), 2, 9000],
    ["too many bytes", new Uint8Array(5), 2, 9000],
    ["an id above the largest", Uint8Array.of(127), 2, 9],
    ["bits after the last id", Uint8Array.of(128), 2, 9],
  ])("refuses %s", (_, bytes, count, largest) => {
    expect(() => unpackRadix(bytes, count, idGrouping(largest))).toThrow(RangeError);
  });
});
