import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "../..");
const readme = readFileSync(join(root, "README.md"), "utf8");
const run = promisify(execFile);
const outrigger = (...args: string[]) =>
  run(process.execPath, ["bin/outrigger.js", ...args], { cwd: root, maxBuffer: 1 << 26 });

describe("what the README says works", () => {
  const out = mkdtempSync(join(tmpdir(), "outrigger-readme-"));
  afterAll(() => rmSync(out, { recursive: true, force: true }));

  it("every npm script that it names is there", () => {
    const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
      scripts: Record<string, string>;
    };
    const named = [...readme.matchAll(/npm run ([\w:-]+)/g)].map((m) => m[1] as string);
    expect(named).toContain("demo");
    expect(named.filter((name) => scripts[name] === undefined)).toEqual([]);
  });

  const commands = [...readme.matchAll(/^\| `outrigger ([\w-]+)/gm)].map((m) => m[1] as string);
  it.each(commands)("outrigger %s --help", async (command) => {
    const { stdout } = await outrigger(command, "--help");
    expect(stdout).toContain(`Usage: outrigger ${command}`);
  });

  it("the demo's experiment runs and leaves its files, two steps of it here", async () => {
    const folder = join(out, "run");
    const { stdout } = await outrigger(
      "run",
      "examples/calculator/experiment.yaml",
      "--steps",
      "2",
      "--out",
      folder,
    );
    const result = JSON.parse(readFileSync(join(folder, "result.json"), "utf8")) as {
      passAt1: { before: number; after: number };
      steps: number;
      rollouts: Record<string, number>;
      calls: { captured: number; incomplete: number };
      samples: number;
      tokens: number;
      wallSeconds: number;
      compute: unknown;
      seed: number;
    };
    expect(result.passAt1.before).toBeGreaterThan(0.2);
    expect(result.passAt1.after).toBeGreaterThan(0.2);
    expect(result).toMatchObject({ steps: 2, seed: 1, calls: { incomplete: 0 } });
    expect(result.calls.captured).toBeGreaterThan(528);
    expect(result.samples).toBeGreaterThan(0);
    expect(result.tokens).toBeGreaterThan(0);
    for (const file of ["report.html", "reward-curve.svg"]) {
      expect(existsSync(join(folder, file))).toBe(true);
      expect(stdout).toContain(file);
    }
  });
});
