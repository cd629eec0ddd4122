import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createContextIndex } from "./context-index.ts";

const ids = (...values: number[]): Int32Array => Int32Array.from(values);
const none = new Int32Array();

describe("createContextIndex", () => {
  it("finds the longest shared context, whichever was added last", () => {
    const index = createContextIndex<string>({ maxTokens: 1000 });
    index.add("k", "a", ids(1, 2, 3), ids(4, 5));
    index.add("k", "b", ids(1, 2, 3), ids(9));
    index.add("k", "c", ids(7), none);
    expect(index.longest("k", ids(1, 2, 3, 4, 5, 6))).toEqual({ owner: "a", sharedLength: 5 });
    expect(index.longest("k", ids(1, 2, 3, 9, 4))).toEqual({ owner: "b", sharedLength: 4 });
    expect(index.longest("k", ids(1, 2))?.sharedLength).toBe(2);
    expect(index.longest("k", ids(8))).toBeUndefined();
    expect(index.longest("k", none)).toBeUndefined();
    expect(index.longest("other", ids(1))).toBeUndefined();
  });

  it("stores what contexts share once", () => {
    const index = createContextIndex<number>({ maxTokens: 1000 });
    for (let turn = 0; turn < 20; turn += 1)
      index.add(
        "k",
        turn,
        Int32Array.from({ length: 5 * turn }, (_, i) => i),
        none,
      );
    expect(index.tokenCount).toBe(95);
  });

  it("agrees with a search of all contexts", () => {
    const word = fc.array(fc.integer({ min: 0, max: 2 }), { maxLength: 12 });
    fc.assert(
      fc.property(fc.array(fc.tuple(word, word), { maxLength: 12 }), word, (contexts, prompt) => {
        const index = createContextIndex<number>({ maxTokens: 10_000 });
        contexts.forEach(([p, r], i) => index.add("k", i, Int32Array.from(p), Int32Array.from(r)));
        const shared = contexts.map(([p, r]) => {
          const context = [...p, ...r];
          let n = 0;
          while (n < prompt.length && n < context.length && prompt[n] === context[n]) n += 1;
          return n;
        });
        const found = index.longest("k", Int32Array.from(prompt));
        expect(found?.sharedLength ?? 0).toBe(Math.max(0, ...shared));
        // One token for each different beginning of a context.
        const starts = contexts.flatMap(([p, r]) =>
          [...p, ...r].map((_, n, all) => all.slice(0, n + 1).join()),
        );
        expect(index.tokenCount).toBe(new Set(starts).size);
        if (found !== undefined) expect(shared[found.owner]).toBe(found.sharedLength);
      }),
      { numRuns: 500 },
    );
  });

  it("stays within its bound, drops what was used longest ago and never answers with it", () => {
    const index = createContextIndex<string>({ maxTokens: 10 });
    index.add("a", "a", ids(1, 2, 3, 4), none);
    index.add("b", "b", ids(1, 2, 3, 4), none);
    index.longest("a", ids(1));
    index.add("c", "c", ids(1, 2, 3, 4), none);
    expect(index.tokenCount).toBe(8);
    expect(index.longest("b", ids(1))).toBeUndefined();
    expect(index.longest("a", ids(1))?.owner).toBe("a");
    index.add("c", "too long", Int32Array.from({ length: 11 }), none);
    expect(index.longest("c", ids(0))).toBeUndefined();
    index.add("a", "own", ids(5, 6, 7, 8, 9, 10, 11, 12), none);
    expect(index.tokenCount).toBeLessThanOrEqual(10);
    expect(index.longest("a", ids(5, 6))?.owner).toBe("own");
  });

  it("keeps its bound over random use", () => {
    const step = fc.tuple(fc.constantFrom("a", "b", "c"), fc.array(fc.integer({ min: 0, max: 3 })));
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
        const index = createContextIndex<number>({ maxTokens: 15 });
        steps.forEach(([key, context], i) => {
          index.add(key, i, Int32Array.from(context), none);
          expect(index.tokenCount).toBeLessThanOrEqual(15);
        });
      }),
    );
  });

  it("bounds the nodes of many short contexts, per key and in all", () => {
    const bounds = { maxTokens: 1_000_000, maxNodes: 100, maxNodesPerKey: 30 };
    const index = createContextIndex<number>(bounds);
    for (let i = 0; i < 3_000; i += 1) {
      index.add(`key${i % 7}`, i, ids(i, i + 1), ids(i + 2));
      expect(index.nodeCount).toBeLessThanOrEqual(100);
      expect(index.longest(`key${i % 7}`, ids(i, i + 1))?.owner).toBe(i);
    }
    const one = createContextIndex<number>(bounds);
    for (let i = 0; i < 1_000; i += 1) {
      one.add("key", i, ids(7, i % 2, i), none);
      expect(one.nodeCount).toBeLessThanOrEqual(30);
    }
    one.clear();
    expect(one.nodeCount).toBe(0);
  });
});
