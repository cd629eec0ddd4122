import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import process from "node:process";
import { afterAll, describe, expect, it } from "vitest";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");
const terminal = resolve(import.meta.dirname, "../python/run-in-terminal.py");
const root = mkdtempSync(join(tmpdir(), "outrigger-terminal-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const hasPython = spawnSync("python3", ["--version"]).status === 0;
if (process.env["CI"] !== undefined) {
  it("there is a Python for a pseudo-terminal", () => expect(hasPython).toBe(true));
}

interface Shown {
  readonly code: number | null;
  /** Everything that was written, control characters included. */
  readonly text: string;
}

function runInTerminal(columns: number, file: string, out: string): Promise<Shown> {
  const command = [process.execPath, executable, "run", file, "--out", out];
  const child = spawn("python3", [terminal, String(columns), ...command], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  let text = "";
  child.stdout.on("data", (chunk: Buffer) => {
    text += chunk.toString();
  });
  return new Promise((done) => child.once("close", (code) => done({ code, text })));
}

const escape = "\u001b";
/** A control sequence, the end of a line, or text. */
const parts = new RegExp(`${escape}\\[[0-9;?]*[A-Za-z]|\\r|\\n|[^\\r\\n${escape}]+`, "g");

/** What is on the screen at the end, and each state of its last line before a change. */
function play(text: string): { readonly lines: readonly string[]; readonly frames: Set<string> } {
  const lines = [""];
  const frames = new Set<string>();
  for (const [part] of text.matchAll(parts)) {
    const last = lines.length - 1;
    if (part === "\n") lines.push("");
    else if (part === "\r") frames.add(lines[last] ?? "");
    else if (part === `${escape}[2K`) lines[last] = "";
    else if (part.startsWith(escape)) throw new Error(`unexpected control ${JSON.stringify(part)}`);
    else lines[last] += part;
  }
  return { lines, frames };
}

describe.skipIf(!hasPython)("outrigger run on a terminal", () => {
  it.each([120, 44])(
    "%i columns: a line that moves, and none of it left behind",
    async (columns) => {
      const folder = join(root, String(columns));
      mkdirSync(folder);
      const file = await writeTinyExperiment(folder, {
        schedule: { steps: 3, groupsPerStep: 2, groupSize: 2 },
        evaluation: { before: true, after: true, count: 3 },
      });
      const { code, text } = await runInTerminal(columns, file, join(folder, "run"));
      expect(code, text).toBe(0);
      const { lines, frames } = play(text);
      const moving = [...frames].filter((frame) => /^(step \d+\/\d+|eval \d+) /.test(frame));
      expect(moving.length, text).toBeGreaterThan(3);
      expect(Math.max(...moving.map((frame) => frame.length))).toBeLessThan(columns);
      const ofSteps = moving.filter((frame) => frame.startsWith("step "));
      expect(
        ofSteps.some((frame) => /\d\/4 {2}reward (–|\d\.\d\d)/.test(frame)),
        text,
      ).toBe(true);
      if (columns > 100) {
        expect(
          ofSteps.some((frame) => /tokens \d+ {2}staleness 0 {2}\d+ s left$/.test(frame)),
        ).toBe(true);
        expect(moving.every((frame) => /[█░]{6,}/.test(frame))).toBe(true);
      }
      // What stays: nothing that moved, no empty line in between, one line for each step.
      const kept = lines.map((line) => line.trimEnd());
      expect(kept.filter((line) => /^(step \d+\/\d+|eval \d+) |[█░]/.test(line))).toEqual([]);
      expect(kept.filter((line) => /^step \d+ {2}/.test(line))).toHaveLength(3);
      const body = kept.slice(
        0,
        kept.findIndex((line) => line.startsWith("pass@1: ")),
      );
      expect(body.filter((line) => line === "")).toEqual([""]);
      expect(kept[0]).toMatch(/^tiny: 3 steps of 2 x 2 rollouts/);
      expect(kept.at(-1), "ends with a line's end").toBe("");
    },
  );
});
