import { deflateRawSync } from "node:zlib";
import { create } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bitSink, finishBits, putBits } from "../../core/records/bit-stream.ts";
import { toBytePlanes } from "../../core/records/byte-planes.ts";
import { PackedFloatsSchema, PackedIdsSchema } from "../../proto/gen/outrigger/v1/record_pb.ts";
import { packFloats, packIds, unpackFloats, unpackIds } from "./pack-ids.ts";

const form = (ids: Int32Array): string => {
  const { deflatedPlanes, classes, largest } = packIds(ids);
  return deflatedPlanes ? "deflated" : classes ? "classes" : largest > 0 ? "radix" : "none";
};
/** Scattered over 0 to 1, the same every time. */
const scattered = (i: number): number => ((i + 1) * 0.618033988749895) % 1;
const uniform = (length: number): Int32Array =>
  Int32Array.from({ length }, (_, i) => Math.floor(scattered(i) * 151_936));
/** By rank as in text, without its repeats. */
const ranked = (length: number): Int32Array =>
  Int32Array.from({ length }, (_, i) => Math.floor(151_936 ** scattered(i)));
const round = (length: number): Int32Array =>
  Int32Array.from({ length }, (_, i) => Math.floor(scattered(i % 40) * 151_936));

describe("packIds", () => {
  it.each([
    ["nothing", new Int32Array(), "none"],
    ["zeros", new Int32Array(200), "none"],
    ["few ids", ranked(64), "radix"],
    ["ids all over the vocabulary", uniform(1000), "radix"],
    ["ids of which small ones are frequent", ranked(1000), "classes"],
    ["ids of a text that repeats itself", round(1000), "deflated"],
    ["more than deflate is let do in one go", round(70_000), "radix"],
  ])("takes for %s the form that suits", (_, ids, expected) => {
    expect(form(ids)).toBe(expected);
    expect(unpackIds(packIds(ids))).toEqual(ids);
  });

  it("gives back any ids, in every form", () => {
    const small = fc.integer({ min: 0, max: 4 });
    const id = fc.oneof(fc.integer(), fc.integer({ min: 0, max: 200_000 }), small);
    const ids = fc.oneof(
      fc.array(id, { maxLength: 300, size: "max" }),
      fc.array(small, { maxLength: 300, size: "max" }),
    );
    fc.assert(
      fc.property(ids, (values) => {
        const packed = Int32Array.from(values);
        expect(unpackIds(packIds(packed))).toEqual(packed);
      }),
      { numRuns: 300 },
    );
  });

  it("reads what earlier versions wrote: whole bits for each id", () => {
    const ids = uniform(100);
    const sink = bitSink(1800);
    for (const id of ids) putBits(sink, id, 18);
    const packed = create(PackedIdsSchema, { count: 100, width: 18, data: finishBits(sink) });
    expect(unpackIds(packed)).toEqual(ids);
  });

  it("gives of forged bytes as many ids as it said, or an error", () => {
    const forged = fc.record({
      count: fc.oneof(fc.nat({ max: 40 }), fc.nat({ max: 2 ** 32 - 1 })),
      width: fc.nat({ max: 40 }),
      data: fc.uint8Array({ maxLength: 40 }),
      deflatedPlanes: fc.boolean(),
      largest: fc.oneof(fc.constant(0), fc.nat({ max: 2 ** 32 - 1 })),
      classes: fc.boolean(),
    });
    fc.assert(
      fc.property(forged, (init) => {
        let ids: Int32Array;
        try {
          ids = unpackIds(create(PackedIdsSchema, init));
        } catch (error) {
          expect(error).toBeInstanceOf(Error);
          return;
        }
        expect(ids.length).toBe(init.count);
      }),
      { numRuns: 1000 },
    );
  });

  it("refuses more ids than any call has, whatever bytes they are said to be in", () => {
    for (const forged of [{}, { largest: 1 }, { classes: true }, { deflatedPlanes: true }])
      expect(() => unpackIds(create(PackedIdsSchema, { count: 2 ** 31, ...forged }))).toThrow(
        RangeError,
      );
  });
});

describe("packFloats", () => {
  const logprobs = (length: number): Float32Array =>
    Float32Array.from({ length }, (_, i) => Math.log(scattered(i)));

  it("takes planes for few floats, a code for exponents otherwise, and less than 3.3 bytes", () => {
    expect(packFloats(logprobs(64)).count).toBe(0);
    const packed = packFloats(logprobs(500));
    expect(packed.count).toBe(500);
    expect(packed.data.length / 500).toBeLessThan(3.3);
  });

  it("keeps every bit: any floats, NaN payloads and negative zero too", () => {
    const bits = fc.oneof(
      fc.integer(),
      fc.integer({ min: 0xbf00_0000 | 0, max: 0xc000_0000 | 0 }),
      fc.constantFrom(0, -(2 ** 31), 0x7fc0_1234),
    );
    fc.assert(
      fc.property(fc.array(bits, { maxLength: 300, size: "max" }), (values) => {
        const floats = new Float32Array(Int32Array.from(values).buffer);
        const unpacked = unpackFloats(packFloats(floats));
        expect([...new Int32Array(unpacked.buffer)]).toEqual(values);
      }),
      { numRuns: 200 },
    );
  });

  it("reads what earlier versions wrote: deflated planes", () => {
    const floats = logprobs(100);
    const planes = toBytePlanes(new Int32Array(floats.buffer), 4);
    const packed = create(PackedFloatsSchema, { data: deflateRawSync(planes), deflated: true });
    expect(unpackFloats(packed)).toEqual(floats);
  });

  it("refuses bytes that are not whole floats, and counts that they do not hold", () => {
    const of = (init: object) => () => unpackFloats(create(PackedFloatsSchema, init));
    expect(of({ data: new Uint8Array(5) })).toThrow(RangeError);
    expect(of({ data: new Uint8Array(8), count: 9 })).toThrow(RangeError);
    expect(of({ data: new Uint8Array(8), count: 2 ** 31 })).toThrow(RangeError);
  });
});
