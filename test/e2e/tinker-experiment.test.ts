import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { RunResult } from "../../controller/report/build-result.ts";
import type { RunComparison } from "../../controller/report/compare-runs.ts";
import { type Overrides, writeTinyExperiment } from "./tiny-experiment.ts";

const outrigger = resolve(import.meta.dirname, "../../bin/outrigger.js");
let directory: string;
/** It is given ten seconds before it counts as away: they pass beside the other tests. */
let away: ReturnType<typeof run>;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), "tinker-experiment-"));
  // Nothing listens on the discard port.
  const url = "http://127.0.0.1:9";
  away = run("backend", "check", await experimentOn("away", { kind: "tinker", url }));
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
    expect(kinds["tinker"]?.losses).toContain("gspo");
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

  it("trains with one word changed, goes on from the journal, and is compared", async () => {
    // Few rollouts, for starting harnesses is what takes time; four are hardly ever all equal.
    const few = {
      schedule: { steps: 1, groupsPerStep: 1, groupSize: 4 },
      evaluation: { before: false, count: 1 },
    };
    const files = { native: await experimentOn("swap", { kind: "native" }, few), tinker: "" };
    files.tinker = join(directory, "swap", "tinker.yaml");
    const text = readFileSync(files.native, "utf8");
    writeFileSync(files.tinker, text.replace("kind: native", "kind: tinker"));
    const out = (kind: string): string => join(directory, "swap", kind);
    for (const [kind, file] of Object.entries(files)) {
      const { code, output } = await run("run", file, "--out", out(kind));
      expect(output).toContain("after 1 steps");
      expect(code).toBe(0);
    }
    const result = JSON.parse(
      readFileSync(join(out("tinker"), "result.json"), "utf8"),
    ) as RunResult;
    expect(result).toMatchObject({ steps: 1, policyVersion: 1, calls: { incomplete: 0 } });
    expect(result.checkpoint).toMatch(/^tinker:\/\//);
    // The server of the first session is gone.
    const more = await run("run", files.tinker, "--out", out("tinker"), "--resume", "--steps", "2");
    expect(more.output).toContain("after 2 steps");
    expect(more.code).toBe(0);

    const { code, output } = await run("report", out("native"), out("tinker"));
    expect(code).toBe(0);
    expect(output).toMatch(/backend +native +tinker/);
    const comparison = JSON.parse(
      readFileSync(join(out("native"), "comparison.json"), "utf8"),
    ) as RunComparison;
    expect(comparison.rewardCurves.map((points) => points.length)).toEqual([1, 2]);
    expect(comparison.settings).toEqual([
      { path: "backend.apiKeyVariable", values: [null, "TINKER_API_KEY"] },
      { path: "backend.concurrency", values: [null, 64] },
      { path: "backend.kind", values: ["native", "tinker"] },
      { path: "backend.loraRank", values: [null, 32] },
      { path: "schedule.steps", values: [1, 2] },
    ]);
    const page = readFileSync(join(out("native"), "comparison.html"), "utf8");
    expect(page).toContain("<svg");
    expect(page).not.toMatch(/<(script|link|img)|src=|href=/);
  });

  it("is refused before anything starts where the backend cannot do it", async () => {
    const more = { sampling: { train: { temperature: 0.7 } } };
    const file = await experimentOn("refused", { kind: "tinker" }, more);
    const outputs = await Promise.all([run("run", file), run("backend", "check", file)]);
    for (const { code, output } of outputs) {
      expect(output).toContain("sampling.train.temperature 0.7: the tinker backend cannot do it");
      expect(code).not.toBe(0);
    }
  });

  it("says that the server is not there", async () => {
    const { code, output } = await away;
    expect(output).toContain("http://127.0.0.1:9/api/v1 gets no answer");
    expect(code).not.toBe(0);
  });
});
