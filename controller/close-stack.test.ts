import { describe, expect, it } from "vitest";
import { createCloseStack } from "./close-stack.ts";

describe("createCloseStack", () => {
  it("closes the last one first, once, and all of them although one fails", async () => {
    const closed: string[] = [];
    const stack = createCloseStack();
    for (const name of ["first", "broken", "last"]) {
      stack.add(async () => {
        closed.push(name);
        if (name === "broken") throw new Error("cannot be closed");
      });
    }
    await expect(stack.close()).rejects.toThrow("cannot be closed");
    await stack.close();
    expect(closed).toEqual(["last", "broken", "first"]);
  });
});
