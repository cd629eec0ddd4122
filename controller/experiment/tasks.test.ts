import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Experiment } from "./load-experiment.ts";
import { parseTasks } from "./read-tasks.ts";
import { taskOrder } from "./task-order.ts";
import { taskProblems } from "./task-problems.ts";

describe("parseTasks", () => {
  const parse = (text: string) => parseTasks("tasks.train", "train.jsonl", text, "id");

  it("reads lines, skips blank ones, and names tasks without an id by their line", () => {
    expect(parse('{"id": "a", "x": 1}\n\n{"id": 7}\n{"x": 2}\n').map((t) => t.taskId)).toEqual([
      "a",
      "7",
      "line-4",
    ]);
  });

  it("accepts a byte order mark in front", () => {
    expect(parse('\uFEFF{"id": "a", "x": 1}\n')).toEqual([
      { taskId: "a", fields: { id: "a", x: 1 }, line: 1 },
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

describe("taskProblems", () => {
  const settings = {
    harness: { fromTask: { QUESTION: "question" } },
    tasks: { verifierOnly: [] },
  } as unknown as Experiment;
  const problems = (question: unknown) =>
    taskProblems("tasks.train", [{ taskId: "t", fields: { question }, line: 3 }], settings);
  const longest = 128 * 1024 - "QUESTION=".length - 1;

  it.each([
    ["NUL", "a\0b", "tasks.train: line 3, task t: question has a NUL character"],
    ["NUL inside what is given as JSON", { a: "\0" }, undefined],
    ["the longest value", "x".repeat(longest), undefined],
    ["one byte more", "x".repeat(longest + 1), "tasks.train: line 3, task t: question has 131063"],
    ["multi-byte characters that are too many", "é".repeat(70_000), "question has 140000"],
  ])("%s in a value for the environment", (_, question, problem) => {
    const found = problems(question).join("\n");
    if (problem === undefined) expect(found).toBe("");
    else expect(found).toContain(problem);
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
