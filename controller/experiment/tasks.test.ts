import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parseTasks } from "./read-tasks.ts";
import { taskOrder } from "./task-order.ts";

describe("parseTasks", () => {
  const parse = (text: string) => parseTasks("tasks.train", "train.jsonl", text, "id");

  it("reads lines, skips blank ones, and names tasks without an id by their line", () => {
    expect(parse('{"id": "a", "x": 1}\n\n{"id": 7}\n{"x": 2}\n').map((t) => t.taskId)).toEqual([
      "a",
      "7",
      "line-4",
    ]);
  });

  it.each([
    ["no JSON", '{"id": 1}\n{', /tasks\.train: train\.jsonl, line 2: /],
    ["no object", "[1]", /line 1: not a JSON object/],
    ["an id twice", '{"id": 1}\n{"id": "1"}', /line 2: id 1 is already on line 1/],
    [
      "an id that is neither text nor number",
      '{"id": {}}',
      /line 1: id is neither text nor a number/,
    ],
    ["nothing", "\n\n", /no task at all/],
  ])("refuses %s and names the line", (_name, text, message) => {
    expect(() => parse(text)).toThrow(message);
  });
});

describe("taskOrder", () => {
  it("gives every task once per epoch, whatever the order of asking", () => {
    fc.assert(
      fc.property(
        fc.nat(),
        fc.integer({ min: 1, max: 40 }),
        fc.nat({ max: 3 }),
        (seed, n, epoch) => {
          const order = taskOrder(seed, n);
          const places = Array.from({ length: n }, (_, i) => epoch * n + i);
          const forward = places.map(order);
          expect([...forward].sort((a, b) => a - b)).toEqual(
            Array.from({ length: n }, (_, i) => i),
          );
          const fresh = taskOrder(seed, n);
          expect(places.toReversed().map(fresh).reverse()).toEqual(forward);
        },
      ),
      { numRuns: 100 },
    );
  });

  it("differs by seed and by epoch", () => {
    const first = (seed: number, epoch: number) => {
      const order = taskOrder(seed, 50);
      return Array.from({ length: 50 }, (_, i) => order(epoch * 50 + i)).join();
    };
    expect(new Set([first(1, 0), first(2, 0), first(1, 1)]).size).toBe(3);
  });
});
