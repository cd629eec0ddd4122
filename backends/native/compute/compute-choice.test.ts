import { describe, expect, it } from "vitest";
import { candidateChoices, computeNames, isGpuExpected } from "./compute-choice.ts";

const names = (name: string, isGpuPresent: boolean, platform: NodeJS.Platform = "linux") =>
  candidateChoices(name, { platform, isGpuPresent }).map((choice) => choice.name);

describe("candidateChoices", () => {
  it.each([
    ["auto", false, ["ort-cpu"]],
    ["auto", true, ["ort-cuda", "ort-webgpu", "tfjs-node-gpu", "ort-cpu"]],
    ["ort", false, ["ort-cpu"]],
    ["ort", true, ["ort-cuda", "ort-webgpu", "ort-cpu"]],
    ["tfjs", true, ["tfjs-node-gpu", "tfjs-node", "tfjs-wasm", "tfjs-js"]],
    ["tfjs", false, ["tfjs-node", "tfjs-wasm", "tfjs-js"]],
  ] as const)("%s with a GPU: %s", (name, isGpuPresent, expected) => {
    expect(names(name, isGpuPresent)).toEqual(expected);
  });

  it("allows a full name only itself, whatever the machine seems to have", () => {
    for (const name of computeNames.slice(3)) expect(names(name, false)).toEqual([name]);
  });

  it("does not try CUDA on a Mac", () => {
    expect(names("auto", true, "darwin")).not.toContain("ort-cuda");
  });

  it("names the choices when there is no such one", () => {
    expect(() => names("cuda", true)).toThrowError(
      expect.objectContaining({
        reason: "compute-unknown",
        hint: expect.stringContaining("ort-cuda"),
      }),
    );
  });
});

describe("isGpuExpected", () => {
  it.each([
    ["linux", ["null", "tty"], false],
    ["linux", ["nvidiactl", "nvidia-uvm"], false],
    ["linux", ["nvidia0"], true],
    ["linux", ["renderD128"], true],
    ["darwin", [], true],
    ["aix", [], false],
  ] as const)("%s with %j: %s", (platform, files, expected) => {
    expect(isGpuExpected(platform, files)).toBe(expected);
  });
});
