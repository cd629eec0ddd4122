import { describe, expect, it } from "vitest";
import { buildEnvMap } from "./env-map.ts";

const input = { question: "1+1?", list: [{ a: 3 }, "x"], nested: { deep: null }, "": "empty" };

describe("buildEnvMap", () => {
  it.each([
    ["a path", { Q: "input.question" }, { Q: "1+1?" }],
    ["a list index", { A: "input.list.0.a", B: "input.list.1" }, { A: "3", B: "x" }],
    ["the whole input as JSON", { ALL: "input" }, { ALL: JSON.stringify(input) }],
    [
      "an object and null as JSON",
      { O: "input.list.0", N: "input.nested.deep" },
      { O: '{"a":3}', N: "null" },
    ],
    ["a literal", { L: "inputs.question", M: "fast" }, { L: "inputs.question", M: "fast" }],
  ])("%s", (_name, map, environment) => {
    expect(buildEnvMap(map, input)).toEqual({ kind: "built", environment });
  });

  it.each([
    [
      "a missing field",
      { Q: "input.answer" },
      "local.env_map.Q: the input has nothing at input.answer",
    ],
    ["an index past the end", { Q: "input.list.2" }, "nothing at input.list.2"],
    ["a name in a list", { Q: "input.list.length" }, "nothing at input.list.length"],
    ["an inherited member", { Q: "input.constructor" }, "nothing at input.constructor"],
    ["not a variable name", { "A=B": "x" }, "not a variable name"],
    ["NUL", { Q: "a\0b" }, "cannot hold NUL"],
  ])("%s is unusable", (_name, map, message) => {
    const result = buildEnvMap(map, input);
    expect(result.kind).toBe("unusable");
    expect(result.kind === "unusable" && result.message).toContain(message);
  });
});
