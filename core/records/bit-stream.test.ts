import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bitSink, bitSource, endOfBits, finishBits, putBits, takeBits } from "./bit-stream.ts";

const field = fc
  .tuple(fc.integer({ min: 0, max: 32 }), fc.integer())
  .map(([width, value]) => ({ width, value: width === 32 ? value : value & (2 ** width - 1) }));

describe("a stream of bits", () => {
  it("gives back what was put, in any mixture of widths, and ends there", () => {
    fc.assert(
      fc.property(fc.array(field), (fields) => {
        const sink = bitSink(fields.reduce((sum, { width }) => sum + width, 0));
        for (const { value, width } of fields) putBits(sink, value, width);
        const source = bitSource(finishBits(sink));
        expect(fields.map(({ width }) => takeBits(source, width))).toEqual(
          fields.map(({ value }) => value),
        );
        expect(() => endOfBits(source)).not.toThrow();
      }),
    );
  });

  it("fills each byte from its lowest bit on", () => {
    const sink = bitSink(11);
    putBits(sink, 0b101, 3);
    putBits(sink, 0b1000_0001, 8);
    expect([...finishBits(sink)]).toEqual([0b0000_1101, 0b100]);
  });

  it("refuses to read behind its end, and an end before the last byte or set bit", () => {
    expect(() => takeBits(bitSource(Uint8Array.of(1)), 9)).toThrow(RangeError);
    expect(() => endOfBits(bitSource(Uint8Array.of(0)))).toThrow(RangeError);
    const source = bitSource(Uint8Array.of(0b100));
    takeBits(source, 2);
    expect(() => endOfBits(source)).toThrow(RangeError);
  });
});
