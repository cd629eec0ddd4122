import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { unpackBits } from "./bit-packing.ts";
import { bitSink, finishBits, putBits } from "./bit-stream.ts";

describe("bit packing", () => {
  it.each([
    [[], 0, []],
    [[0, 0], 0, []],
    [[1, 0, 1], 1, [0b101]],
    [[5, 2], 3, [0b010_101]],
    [[0x1ff, 1], 9, [0xff, 0b11, 0]],
    [[-1], 32, [255, 255, 255, 255]],
  ])("%j of %d bits each", (values, width, bytes) => {
    expect([...unpackBits(Uint8Array.from(bytes), values.length, width)]).toEqual(values);
  });

  it("gives back what was put, for every width", () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 32 }), fc.array(fc.integer()), (width, values) => {
        const ids = values.map((v) => (width === 32 ? v : v & (2 ** width - 1)));
        const sink = bitSink(width * ids.length);
        for (const id of ids) putBits(sink, id, width);
        expect([...unpackBits(finishBits(sink), ids.length, width)]).toEqual(ids);
      }),
    );
  });

  it("refuses bytes that do not fit the count", () => {
    expect(() => unpackBits(new Uint8Array(2), 3, 8)).toThrow(RangeError);
    expect(() => unpackBits(new Uint8Array(4), 1, 33)).toThrow(RangeError);
  });
});
