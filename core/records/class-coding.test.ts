import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  floatClassCode,
  idClassCode,
  packFloatClasses,
  packIdClasses,
  unpackFloatClasses,
  unpackIdClasses,
} from "./class-coding.ts";

const id = fc.oneof(fc.integer(), fc.integer({ min: 0, max: 1000 }), fc.constant(-(2 ** 31)));
const values = fc.array(id, { minLength: 1 }).map((of) => Int32Array.from(of));

describe("class coding", () => {
  it("gives back any ids, in as many bits as it said", () => {
    fc.assert(
      fc.property(values, (ids) => {
        const code = idClassCode(ids);
        const bytes = packIdClasses(ids, code);
        expect(bytes.length).toBe(Math.ceil(code.bits / 8));
        expect(unpackIdClasses(bytes, ids.length)).toEqual(ids);
      }),
      { numRuns: 300 },
    );
  });

  it("gives back any bits of floats, in as many bits as it said", () => {
    fc.assert(
      fc.property(values, (floats) => {
        const code = floatClassCode(floats);
        const bytes = packFloatClasses(floats, code);
        expect(bytes.length).toBe(Math.ceil(code.bits / 8));
        expect(unpackFloatClasses(bytes, floats.length)).toEqual(floats);
      }),
      { numRuns: 300 },
    );
  });

  it("refuses bytes that end early, go on, or hold no such count", () => {
    const ids = Int32Array.of(1, 2, 3, 70_000);
    const bytes = packIdClasses(ids, idClassCode(ids));
    expect(() => unpackIdClasses(bytes.subarray(0, -1), 4)).toThrow(RangeError);
    expect(() => unpackIdClasses(Uint8Array.of(...bytes, 0), 4)).toThrow(RangeError);
    expect(() => unpackIdClasses(bytes, 3)).toThrow(RangeError);
    expect(() => unpackIdClasses(bytes, 2 ** 32 - 1)).toThrow(RangeError);
    expect(() => unpackFloatClasses(new Uint8Array(), 1)).toThrow(RangeError);
  });

  it("refuses an id of more than 32 bits", () => {
    const floats = Int32Array.from({ length: 9 }, () => 0x4000_0000);
    const bytes = packFloatClasses(floats, floatClassCode(floats));
    expect(() => unpackIdClasses(bytes, 9)).toThrow("bits");
  });
});
