import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { float32At, readLogprobs } from "./read-logprobs.ts";

const read = (text: string) => {
  const bytes = Buffer.from(text);
  const values: number[] = [];
  const end = readLogprobs(bytes, 0, values);
  return end === -1 ? undefined : { values, end };
};
const asFloat32 = (text: string): number => {
  const bytes = Buffer.from(`x${text}y`);
  return float32At(bytes, 1, bytes.length - 1);
};

describe("a number in float32", () => {
  it("is that of Number, for doubles as they are printed", () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(asFloat32(String(value).replace("e+", "e"))).toBe(
          Math.fround(Object.is(value, -0) ? 0 : value),
        );
      }),
      { numRuns: 2_000 },
    );
  });

  it("is that of Number, for float32 values and numbers close to half-way between two", () => {
    fc.assert(
      fc.property(
        fc.float({ noNaN: true, noDefaultInfinity: true }),
        fc.integer({ min: -3, max: 3 }),
        (value, ulps) => {
          const next = Math.fround(value * (1 + 2 ** -23));
          const middle = ((value + next) / 2) * (1 + ulps * 2 ** -52);
          for (const number of [value, middle]) {
            if (!Number.isFinite(number) || Object.is(number, -0)) continue;
            expect(asFloat32(String(number))).toBe(Math.fround(number));
            expect(asFloat32(number.toExponential(20))).toBe(
              Math.fround(Number(number.toExponential(20))),
            );
          }
        },
      ),
      { numRuns: 2_000 },
    );
  });

  it.each([
    "0",
    "-0",
    "-0.0",
    "1e400",
    "-1E+2",
    "1e-400",
    "0.1",
    "123456789012345678901234567890",
    "0.00000000000000000000000000000012345678901234567890123",
    "-1.1920928244535389e-07",
  ])("%s", (text) => {
    expect(asFloat32(text)).toBe(Math.fround(Number(text)));
  });
});

describe("logprobs of an answer", () => {
  it("are those of the parsed object, wherever it ends", () => {
    const entry = fc.record({
      token: fc.string(),
      logprob: fc.double({ noNaN: true, noDefaultInfinity: true }).filter((v) => !Object.is(v, -0)),
      bytes: fc.oneof(fc.constant(null), fc.array(fc.nat(255))),
      top_logprobs: fc.array(
        fc.record({ token: fc.string(), logprob: fc.double({ noNaN: true }) }),
      ),
    });
    fc.assert(
      fc.property(fc.array(entry), fc.nat(2), fc.string(), (content, indent, after) => {
        const text = JSON.stringify({ refusal: null, content }, null, indent);
        expect(read(text + after)).toEqual({
          values: content.map(({ logprob }) => Math.fround(logprob)),
          end: Buffer.byteLength(text),
        });
      }),
    );
  });

  it.each([
    ["null", "null"],
    ["no content", '{"a":1}'],
    ["nothing", "{}"],
    ["content twice", '{"content":[],"content":[]}'],
    ["no number", '{"content":[{"logprob":null}]}'],
    ["NaN", '{"content":[{"logprob":NaN}]}'],
    ["a text", '{"content":[{"logprob":"-1"}]}'],
    ["two numbers", '{"content":[{"logprob":-1,"logprob":-2}]}'],
    ["none in an entry", '{"content":[{"logprob":-1},{}]}'],
    ["a leading zero", '{"content":[{"logprob":-01}]}'],
    ["a bare point", '{"content":[{"logprob":-1.}]}'],
    ["a bare exponent", '{"content":[{"logprob":-1e}]}'],
    ["text completions", '{"token_logprobs":[-1]}'],
    ["cut off", '{"content":[{"logprob":-1}'],
    ["cut off in a number", '{"content":[{"logprob":-'],
    ["something else in the list", '{"content":[3]}'],
    ["a key with an escape", '{"content":[{"\\u006cogprob":-1}]}'],
    ["the same key again, with an escape", '{"content":[{"logprob":-1,"\\u006cogprob":-2}]}'],
    ["the same key again, with another", '{"content":[{"logprob":-1,"lo\\u0067prob":-2}]}'],
    ["content again, with an escape", '{"content":[{"logprob":-1}],"c\\u006fntent":[]}'],
  ])("in another form are left to the parser: %s", (_name, text) => {
    expect(read(text)).toBeUndefined();
  });
});
