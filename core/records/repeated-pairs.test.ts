import { describe, expect, it } from "vitest";
import { repeatedPairShare } from "./repeated-pairs.ts";

describe("repeatedPairShare", () => {
  it.each([
    [[], 0],
    [[7], 0],
    [[1, 2, 3], 0],
    [[1, 2, 1, 2, 1], 0.5],
    [[0, 0, 0, 0, 0], 0.75],
    [[1, 2, 2, 1, 1, 3], 0],
  ])("of %j it is %d", (ids, share) => {
    expect(repeatedPairShare(Int32Array.from(ids))).toBe(share);
  });

  it("tells a text that goes round from one that does not", () => {
    const round = Int32Array.from({ length: 5000 }, (_, i) => (i % 50) * 3001);
    const straight = Int32Array.from({ length: 5000 }, (_, i) => i * 31);
    expect(repeatedPairShare(round)).toBeGreaterThan(0.9);
    expect(repeatedPairShare(straight)).toBe(0);
  });
});
