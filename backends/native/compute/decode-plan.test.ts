import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { planDecode } from "./decode-plan.ts";

const limits = { maxPieceTokens: 8, maxGroupTokens: 24 };
const tokens = (length: number): Int32Array => Int32Array.from({ length }, (_, t) => t);

describe("planDecode", () => {
  it("runs decode steps together, and prefills apart from them", () => {
    const items = [
      { slot: 0, tokenIds: tokens(1) },
      { slot: 1, tokenIds: tokens(3) },
      { slot: 2, tokenIds: tokens(1) },
      { slot: 3, tokenIds: tokens(10) },
    ];
    const groups = planDecode(items, (slot) => (slot === 3 ? 0 : 5), limits);
    expect(
      groups.map((g) => g.map((p) => [p.slot, p.tokenIds.length, p.isFresh, p.isLast])),
    ).toEqual([
      [
        [0, 1, false, true],
        [2, 1, false, true],
      ],
      [[1, 3, false, true]],
      [[3, 8, true, false]],
      [[3, 2, false, true]],
    ]);
  });

  it("gives every token once, in order, one piece per slot and group, within the limits", () => {
    const sizes = fc.array(fc.record({ count: fc.integer({ min: 1, max: 40 }), has: fc.nat(2) }));
    fc.assert(
      fc.property(sizes, (given) => {
        const items = given.map(({ count }, slot) => ({ slot, tokenIds: tokens(count) }));
        const groups = planDecode(items, (slot) => given[slot]?.has ?? 0, limits);
        const seen: number[][] = given.map(() => []);
        for (const group of groups) {
          expect(new Set(group.map((p) => p.slot)).size).toBe(group.length);
          const width = Math.max(...group.map((p) => p.tokenIds.length));
          if (group.length > 1) {
            expect(width * group.length).toBeLessThanOrEqual(limits.maxGroupTokens);
          }
          for (const p of group) {
            expect(p.isFresh).toBe(seen[p.slot]?.length === 0 && given[p.slot]?.has === 0);
            seen[p.slot]?.push(...p.tokenIds);
            expect(p.isLast).toBe(seen[p.slot]?.length === given[p.slot]?.count);
          }
        }
        expect(seen).toEqual(items.map((item) => [...item.tokenIds]));
      }),
    );
  });
});
