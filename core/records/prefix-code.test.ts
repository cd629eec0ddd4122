import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { bitSink, bitSource, endOfBits, finishBits, putBits } from "./bit-stream.ts";
import {
  buildPrefixCode,
  maxSymbolCount,
  prefixCodeBits,
  readPrefixCode,
  takeSymbol,
  writePrefixCode,
} from "./prefix-code.ts";

const countsOf = (symbols: readonly number[]): Uint32Array => {
  const counts = new Uint32Array(maxSymbolCount);
  for (const symbol of symbols) counts[symbol] = (counts[symbol] as number) + 1;
  return counts;
};

function written(symbols: readonly number[], counts = countsOf(symbols)): Uint8Array {
  const code = buildPrefixCode(counts);
  const { lengths, codes } = code;
  const bits = symbols.reduce((sum, s) => sum + (lengths[s] as number), prefixCodeBits(code));
  const sink = bitSink(bits);
  writePrefixCode(sink, code);
  for (const s of symbols) putBits(sink, codes[s] as number, lengths[s] as number);
  return finishBits(sink);
}

function read(bytes: Uint8Array, count: number): number[] {
  const source = bitSource(bytes);
  const decoder = readPrefixCode(source);
  const symbols = Array.from({ length: count }, () => takeSymbol(source, decoder));
  endOfBits(source);
  return symbols;
}

describe("a prefix code", () => {
  it.each([
    [
      [5, 0, 2, 2],
      [1, 0, 2, 2],
    ],
    [
      [1, 1, 1, 1],
      [2, 2, 2, 2],
    ],
    [
      [0, 9, 0],
      [1, 1, 0],
    ],
    [
      [9, 0],
      [1, 1],
    ],
    [
      [1, 1, 2, 4, 8],
      [4, 4, 3, 2, 1],
    ],
  ])("counts %j make lengths %j", (counts, lengths) => {
    expect([...buildPrefixCode(Uint32Array.from(counts)).lengths]).toEqual(lengths);
  });

  it("gives back any symbols", () => {
    const symbol = fc.oneof(
      fc.integer({ min: 0, max: maxSymbolCount - 1 }),
      fc.integer({ min: 256, max: 262 }),
    );
    fc.assert(
      fc.property(fc.array(symbol, { minLength: 1, maxLength: 60 }), (symbols) => {
        expect(read(written(symbols), symbols.length)).toEqual(symbols);
      }),
      { numRuns: 300 },
    );
  });

  it("has no code of more than 15 bits, however uneven the counts, and stays complete", () => {
    const counts = Uint32Array.from({ length: 30 }, (_, i) => Math.floor(1.7 ** i) + 1);
    const { lengths } = buildPrefixCode(counts);
    expect(Math.max(...lengths)).toBe(15);
    expect([...lengths].reduce((sum, length) => sum + 2 ** -length, 0)).toBe(1);
    const symbols = Array.from(counts, (_, i) => i);
    expect(read(written(symbols, counts), 30)).toEqual(symbols);
  });

  it("takes as few bits as Huffman's code, which no other code for single symbols beats", () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 99 }), { minLength: 2, maxLength: 20 }),
        (counts) => {
          const { lengths } = buildPrefixCode(Uint32Array.from(counts));
          const bits = counts.reduce((sum, n, i) => sum + n * (lengths[i] as number), 0);
          // The sum of all inner nodes, the two lightest joined each time.
          const weights = [...counts];
          let least = 0;
          while (weights.length > 1) {
            weights.sort((a, b) => a - b);
            const joined = (weights.shift() as number) + (weights.shift() as number);
            least += joined;
            weights.push(joined);
          }
          expect(bits).toBe(least);
        },
      ),
    );
  });

  it.each([
    ["nothing", []],
    ["no symbol in the first 512", Array(64).fill(0xff & 0xf0)],
    ["more codes than there is room for", [0x12, 0x01]],
    ["an end before the code is complete", [0x21]],
  ])("refuses %s", (_, bytes) => {
    expect(() => readPrefixCode(bitSource(Uint8Array.from(bytes)))).toThrow(RangeError);
  });
});
