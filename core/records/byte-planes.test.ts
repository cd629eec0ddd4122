import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { fromBytePlanes, toBytePlanes } from "./byte-planes.ts";

describe("byte planes", () => {
  it("puts all lowest bytes first", () => {
    expect([...toBytePlanes(Int32Array.of(1, 0x203), 2)]).toEqual([1, 3, 0, 2]);
  });

  it("gives back what was split", () => {
    fc.assert(
      fc.property(fc.array(fc.integer()), (values) => {
        const ids = Int32Array.from(values);
        expect(fromBytePlanes(toBytePlanes(ids, 4), ids.length)).toEqual(ids);
      }),
    );
  });

  it.each([
    [5, 2],
    [10, 2],
    [1, 0],
  ])("refuses %d bytes for %d values", (bytes, count) => {
    expect(() => fromBytePlanes(new Uint8Array(bytes), count)).toThrow(RangeError);
  });
});
