import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bitWidth, packBits, unpackBits } from "./bit-packing.ts";

describe("bit packing", () => {
  it.each([
    [[], 0, []],
    [[0, 0], 0, []],
    [[1, 0, 1], 1, [0b101]],
    [[5, 2], 3, [0b010_101]],
    [[0x1ff, 1], 9, [0xff, 0b11, 0]],
    [[-1], 32, [255, 255, 255, 255]],
  ])("%j takes %d bits each", (values, width, bytes) => {
    const ids = Int32Array.from(values);
    expect(bitWidth(ids)).toBe(width);
    expect([...packBits(ids, width)]).toEqual(bytes);
  });

  it("gives back what was packed, for every width", () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 32 }), fc.array(fc.integer()), (width, values) => {
        const ids = Int32Array.from(values, (v) => (width === 32 ? v : v & (2 ** width - 1)));
        expect(unpackBits(packBits(ids, width), ids.length, width)).toEqual(ids);
      }),
    );
  });

  it("refuses bytes that do not fit the count", () => {
    expect(() => unpackBits(new Uint8Array(2), 3, 8)).toThrow(RangeError);
    expect(() => unpackBits(new Uint8Array(4), 1, 33)).toThrow(RangeError);
  });
});
