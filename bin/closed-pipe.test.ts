import { PassThrough } from "node:stream";
import { expect, it } from "vitest";
import { survivePipesClosing } from "./closed-pipe.ts";

const closed = () => Object.assign(new Error("write EPIPE"), { code: "EPIPE" });

it.each([
  [true, 0],
  [false, 1],
])("a closed pipe ends nothing that goes on (%s)", (goesOn, ends) => {
  const stream = new PassThrough();
  let ended = 0;
  survivePipesClosing(goesOn, [stream], () => ended++);
  stream.emit("error", closed());
  expect(ended).toBe(ends);
});

it("another failure of the output is not hidden", () => {
  const stream = new PassThrough();
  survivePipesClosing(true, [stream]);
  expect(() => stream.emit("error", new Error("disk full"))).toThrow("disk full");
});
