import { expect, it } from "vitest";
import { describeInvocation, quoteForShell } from "./invocation.ts";

const file = "/home/ann/clone/bin/outrigger.js";

it.each([
  ["in the clone itself", { script: file, cwd: "/home/ann/clone" }, "npx outrigger"],
  ["by npx", { script: "/x/outrigger", cwd: "/home/ann", npmCommand: "exec" }, "npx outrigger"],
  ["by its path from elsewhere", { script: file, cwd: "/srv" }, `node ${file}`],
  ["by a path below", { script: file, cwd: "/home/ann" }, "node clone/bin/outrigger.js"],
  ["as an installed command", { script: "/usr/bin/outrigger", cwd: "/srv" }, "outrigger"],
])("says how the program was started: %s", (_how, facts, expected) => {
  expect(describeInvocation({ file, npmCommand: undefined, ...facts })).toBe(expected);
});

it("quotes what a shell would take apart", () => {
  expect(quoteForShell("a/b-1.yaml")).toBe("a/b-1.yaml");
  expect(quoteForShell("my runs/it's")).toBe(`'my runs/it'\\''s'`);
});
