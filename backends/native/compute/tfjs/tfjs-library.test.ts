import { createRequire } from "node:module";
import { describe, expect, it } from "vitest";
import { describeNativeFailure, restoreUtilFunctions } from "./tfjs-library.ts";

describe("describeNativeFailure", () => {
  it("tells a package that is missing", () => {
    const require = createRequire(import.meta.url);
    const error = (() => {
      try {
        return require("@tensorflow/no-such-package") as unknown;
      } catch (cause) {
        return cause;
      }
    })();
    expect(describeNativeFailure("@tensorflow/no-such-package", error)).toBe(
      "package @tensorflow/no-such-package is not installed",
    );
  });

  it("tells a package without the library that its install script downloads", () => {
    const error = Object.assign(
      new Error(
        "The Node.js native addon module (tfjs_binding.node) can not be found at path: /x\nmore",
      ),
      { code: "MODULE_NOT_FOUND" },
    );
    expect(describeNativeFailure("@tensorflow/tfjs-node", error)).toMatch(
      /is installed, but its library does not load \(The Node\.js native addon/,
    );
    expect(describeNativeFailure("@tensorflow/tfjs-node", "odd")).toContain("(odd)");
  });
});

it("restores what newer Nodes removed, and leaves alone what is there", () => {
  const own = (): boolean => true;
  const target: Record<string, unknown> = { isArray: own };
  restoreUtilFunctions(target);
  expect(target["isArray"]).toBe(own);
  const isNullOrUndefined = target["isNullOrUndefined"] as (value: unknown) => boolean;
  expect([null, undefined, 0, ""].map(isNullOrUndefined)).toEqual([true, true, false, false]);
});
