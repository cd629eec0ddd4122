import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { RunResult } from "../../controller/report/build-result.ts";
import { type Overrides, writeTinyExperiment } from "./tiny-experiment.ts";

const outrigger = resolve(import.meta.dirname, "../../bin/outrigger.js");
let directory: string;

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "tinker-experiment-"));
});
afterAll(() => rmSync(directory, { recursive: true }));

async function run(...flags: string[]): Promise<{ code: number; output: string }> {
  try {
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [outrigger, ...flags], {
      cwd: directory,
    });
    return { code: 0, output: stdout + stderr };
  } catch (error) {
    const { code, stdout, stderr } = error as { code: number; stdout: string; stderr: string };
    return { code, output: stdout + stderr };
  }
}

/** The tiny experiment on another backend; `more` is merged into it. */
function experimentOn(name: string, backend: Overrides, more: Overrides = {}): Promise<string> {
  return writeTinyExperiment(join(directory, name), { ...more, backend });
}

describe("outrigger backends", () => {
  it("lists what each kind can do and what is installed", async () => {
    const text = await run("backends");
    expect(text).toMatchObject({ code: 0 });
    expect(text.output).toMatch(/onnxruntime-node +\d/);
    const { kinds } = JSON.parse((await run("backends", "--json")).output) as {
      kinds: Record<string, { losses: string[]; supportsKl: boolean }>;
    };
    expect(kinds["native"]).toMatchObject({ supportsKl: true });
    expect(kinds["tinker"]?.losses).toEqual(["importance-sampling", "ppo", "cispo"]);
  });
});

describe("an experiment whose backend's kind is another", () => {
  it.each(["native", "tinker"])(
    "outrigger backend check tries %s with a real update",
    async (kind) => {
      const file = await experimentOn(`check-${kind}`, { kind });
      const { code, output } = await run("backend", "check", file);
      expect(output).toMatch(/one update: \d+ tokens/);
      expect(output).toMatch(/serves version 1/);
      expect(code).toBe(0);
    },
  );

  it("trains on a Tinker server, with one word changed", async () => {
    const file = await experimentOn("run", { kind: "tinker" });
    const out = join(directory, "run", "out");
    const { code, output } = await run("run", file, "--out", out, "--steps", "2");
    expect(output).toContain("after 2 steps");
    expect(code).toBe(0);
    const result = JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as RunResult;
    expect(result.steps).toBe(2);
    expect(result.calls.incomplete).toBe(0);
    expect(result.checkpoint).toMatch(/^tinker:\/\//);
    // It goes on from the journal: the server of the first session is gone.
    const more = await run("run", file, "--out", out, "--resume", "--steps", "3");
    expect(more.output).toContain("after 3 steps");
    expect(more.code).toBe(0);
  });

  it("is refused before anything starts where the backend cannot do it", async () => {
    const more = { algorithm: { klCoefficient: 0.1 } };
    const file = await experimentOn("refused", { kind: "tinker" }, more);
    for (const command of [["run"], ["backend", "check"]]) {
      const { code, output } = await run(...command, file);
      expect(output).toContain("algorithm.klCoefficient 0.1: the tinker backend cannot do it");
      expect(code).not.toBe(0);
    }
  });

  it("says that the server is not there", async () => {
    // Nothing listens on the discard port.
    const url = "http://127.0.0.1:9";
    const file = await experimentOn("away", { kind: "tinker", url });
    const { code, output } = await run("backend", "check", file);
    expect(output).toContain("http://127.0.0.1:9/api/v1 gets no answer");
    expect(code).not.toBe(0);
  });
});
