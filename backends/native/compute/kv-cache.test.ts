import fc from "fast-check";
import { expect, it } from "vitest";
import type { ModelConfig } from "../model/model-config.ts";
import { createKvCache } from "./kv-cache.ts";

const config = { layerCount: 2, kvHeadCount: 2, headDim: 2 } as ModelConfig;
const slots = 4;

/** A value that says which token, layer, kind, head and element it is. */
const stamp = (token: number, layer: number, kind: number, head: number, d: number): number =>
  token * 100 + layer * 50 + kind * 20 + head * 10 + d;

/** New tokens [rows, heads, width, headDim] of which row r's are `tokens[r]`, padded with -1. */
function newTokens(tokens: readonly (readonly number[])[], width: number) {
  const fill = (layer: number, kind: number): Float32Array => {
    const data: number[] = [];
    for (const row of tokens) {
      for (let head = 0; head < 2; head++) {
        for (let t = 0; t < width; t++) {
          for (let d = 0; d < 2; d++) {
            const token = row[t];
            data.push(token === undefined ? -1 : stamp(token, layer, kind, head, d));
          }
        }
      }
    }
    return Float32Array.from(data);
  };
  return [0, 1].map((layer) => ({ keys: fill(layer, 0), values: fill(layer, 1) }));
}

const command = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("extend" as const),
      slots: fc.uniqueArray(fc.nat(slots - 1), { minLength: 1 }),
      counts: fc.array(fc.integer({ min: 1, max: 45 }), { minLength: slots, maxLength: slots }),
    }),
  },
  fc.record({
    kind: fc.constant("truncate" as const),
    slot: fc.nat(slots - 1),
    keep: fc.double({ min: 0, max: 1, noNaN: true }),
  }),
);

it("holds, after any calls, what an array per sequence holds", () => {
  fc.assert(
    fc.property(fc.array(command, { maxLength: 16 }), (commands) => {
      const cache = createKvCache(config, slots);
      const model: number[][] = Array.from({ length: slots }, () => []);
      let nextToken = 1;
      for (const c of commands) {
        if (c.kind === "truncate") {
          const sequence = model[c.slot] ?? [];
          const length = Math.floor(sequence.length * c.keep);
          cache.truncate(c.slot, length);
          model[c.slot] = sequence.slice(0, length);
          continue;
        }
        const order = cache.moveToFront(c.slots);
        expect(new Set(order)).toEqual(new Set(c.slots));
        const tokens = order.map((slot) =>
          Array.from({ length: c.counts[slot] ?? 1 }, () => nextToken++),
        );
        const width = Math.max(...tokens.map((t) => t.length));
        cache.append(
          tokens.map((t) => t.length),
          width,
          newTokens(tokens, width),
        );
        for (const [row, slot] of order.entries()) model[slot]?.push(...(tokens[row] ?? []));
      }
      const rows = cache.moveToFront([0, 1, 2, 3]);
      const capacity = cache.capacity();
      for (const [row, slot] of rows.entries()) {
        const sequence = model[slot] ?? [];
        expect(cache.lengthOf(slot)).toBe(sequence.length);
        for (let layer = 0; layer < 2; layer++) {
          const { keys, values } = cache.layer(layer, slots);
          for (const [kind, data] of [keys, values].entries()) {
            for (let head = 0; head < 2; head++) {
              const start = (row * 2 + head) * capacity * 2;
              const expected = sequence.flatMap((token) =>
                [0, 1].map((d) => stamp(token, layer, kind, head, d)),
              );
              const end = start + sequence.length * 2;
              expect(Array.from(data.subarray(start, end))).toEqual(expected);
            }
          }
        }
      }
    }),
    { numRuns: 30 },
  );
});

it("leaves nothing of a freed sequence behind, not even a NaN", () => {
  const cache = createKvCache(config, slots);
  cache.moveToFront([2]);
  const fresh = newTokens([[1, 2, 3]], 3);
  fresh[1]?.values.fill(Number.NaN);
  cache.append([3], 3, fresh);
  cache.truncate(2, 0);
  expect(cache.layer(1, slots).values.every((value) => value === 0)).toBe(true);
});

it("gives memory back when the long sequence is gone", () => {
  const cache = createKvCache(config, slots);
  const tokens = Array.from({ length: 500 }, (_, t) => t);
  cache.moveToFront([1]);
  cache.append([500], 500, newTokens([tokens], 500));
  expect(cache.capacity()).toBe(512);
  cache.truncate(1, 10);
  expect(cache.capacity()).toBe(64);
});
