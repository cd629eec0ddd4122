import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { sharedEnds } from "./shared-ends.ts";

const bytes = (text: string): Uint8Array => Uint8Array.from(text, (c) => c.charCodeAt(0));

describe("sharedEnds", () => {
  it.each([
    ["", "", 0, 0],
    ["abc", "abc", 3, 0],
    ["[m1],tools", "[m1,m2],tools", 3, 7],
    ["aa", "aaa", 2, 0],
    ["xay", "xby", 1, 1],
  ])("%j and %j share %d bytes, then %d", (base, text, prefixBytes, suffixBytes) => {
    expect(sharedEnds(bytes(base), bytes(text))).toEqual({ prefixBytes, suffixBytes });
  });

  it("base ends around the middle give the text", () => {
    const word = fc.uint8Array({ max: 3, maxLength: 20 });
    fc.assert(
      fc.property(word, word, (base, text) => {
        const { prefixBytes, suffixBytes } = sharedEnds(base, text);
        const rebuilt = [
          ...base.subarray(0, prefixBytes),
          ...text.subarray(prefixBytes, text.length - suffixBytes),
          ...base.subarray(base.length - suffixBytes),
        ];
        expect(rebuilt).toEqual([...text]);
      }),
    );
  });
});
