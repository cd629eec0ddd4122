import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import process from "node:process";
import { afterAll, describe, expect, it } from "vitest";
import { findByEnvironment } from "../../controller/runners/process-identity.ts";
import { openRunStores } from "../../controller/store/open-run-stores.ts";
import { type Overrides, writeTinyExperiment } from "./tiny-experiment.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");
const root = mkdtempSync(join(tmpdir(), "outrigger-interrupt-"));
const started: ChildProcess[] = [];
afterAll(() => {
  for (const child of started) child.kill("SIGKILL");
  rmSync(root, { recursive: true, force: true });
});

/** `outrigger run` and what it says. */
function startRun(file: string, out: string, ...flags: readonly string[]) {
  const args = [executable, "run", file, "--out", out, ...flags];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] });
  started.push(child);
  let output = "";
  const listeners = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (chunk: Buffer) => {
      output += chunk.toString();
      for (const listener of listeners) listener();
    });
  }
  let isOver = false;
  const ended = new Promise<number | string>((done) =>
    child.once("close", (code, signal) => {
      isOver = true;
      done(signal ?? code ?? -1);
    }),
  );
  return {
    ended,
    output: () => output,
    interrupt: () => child.kill("SIGINT"),
    /** Resolves when the hanging harness has made its call. */
    runs: async (outputFile: string) => {
      while (
        !existsSync(outputFile) ||
        !readFileSync(outputFile, "utf8").includes("here to stay")
      ) {
        if (isOver) throw new Error(`it ended:\n${output}`);
        // It is another process that writes it.
        await new Promise((look) => setTimeout(look, 20));
      }
    },
    /** Resolves when it has said so; rejects when it ends before. */
    says: (text: string) =>
      new Promise<void>((done, fail) => {
        const look = (): void => {
          if (!output.includes(text)) return;
          listeners.delete(look);
          done();
        };
        listeners.add(look);
        look();
        void ended.then(() => fail(new Error(`it never said "${text}":\n${output}`)));
      }),
  };
}

async function write(name: string, over: Overrides, files: Record<string, string> = {}) {
  const folder = join(root, name);
  mkdirSync(folder);
  const evaluation = { before: true, after: true, count: 2 };
  const file = await writeTinyExperiment(folder, { evaluation, ...over }, files);
  return { file, out: join(folder, "run") };
}

interface Result {
  readonly state: string;
  readonly steps: number;
  readonly passAt1: { readonly before: number | null; readonly after: number | null };
}

function resultOf(out: string): Result {
  return JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as Result;
}

function leftovers(out: string): readonly number[] {
  const { runId } = JSON.parse(readFileSync(join(out, "run.json"), "utf8")) as { runId: string };
  return findByEnvironment({ OUTRIGGER_RUN_ID: runId });
}

async function openAttempts(out: string): Promise<number> {
  const stores = await openRunStores(out);
  try {
    return (await stores.rollouts.openAttempts()).length;
  } finally {
    await stores.close();
  }
}

/** Says hello, then never ends by itself. */
const hangingHarness = `
const url = process.env.OPENAI_BASE_URL + "/chat/completions";
const headers = { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" };
await fetch(url, { method: "POST", headers, body: JSON.stringify({ model: "policy", max_tokens: 2, messages: [{ role: "user", content: "hi" }] }) });
console.log("here to stay");
setInterval(() => {}, 1000);
`;

describe("Ctrl-C", () => {
  it("drains, says how to go on, and --resume ends with a result of the same shape", async () => {
    const { file, out } = await write("drain", {
      schedule: { steps: 40, groupsPerStep: 1, groupSize: 2 },
    });
    const first = startRun(file, out);
    await first.says("step 1 ");
    first.interrupt();
    expect(await first.ended, first.output()).toBe(2);
    expect(first.output()).toContain("SIGINT: draining; once more to stop at once");
    expect(first.output()).toContain(`outrigger run ${file} --resume --out ${out}`);
    expect(leftovers(out)).toEqual([]);
    expect(await openAttempts(out), "what ran was let end").toBe(0);
    const stopped = resultOf(out);
    expect(stopped).toMatchObject({ state: "stopped", passAt1: { after: null } });
    expect(stopped.steps).toBeGreaterThan(0);
    expect(stopped.steps).toBeLessThan(40);

    const steps = stopped.steps + 1;
    const second = startRun(file, out, "--resume", "--steps", String(steps));
    expect(await second.ended, second.output()).toBe(0);
    const done = resultOf(out);
    expect(done).toMatchObject({ state: "done", steps });
    expect(done.passAt1.before).toBe(stopped.passAt1.before);
    expect(done.passAt1.after).not.toBeNull();
    expect(Object.keys(done)).toEqual(Object.keys(stopped));
  });

  it("a second time stops at once, and the run can be resumed", async () => {
    const { file, out } = await write(
      "twice",
      {
        harness: { timeoutMs: 600_000 },
        schedule: { steps: 1, groupsPerStep: 1, groupSize: 1 },
        evaluation: { before: false, after: false },
      },
      { "harness.mjs": hangingHarness },
    );
    const first = startRun(file, out);
    // Its only harness hangs, so the drain would take its whole grace.
    await first.runs(join(out, "rollouts/g0-0/1/output.log"));
    first.interrupt();
    await first.says("draining");
    first.interrupt();
    expect(await first.ended, first.output()).toBe(130);

    const second = startRun(file, out, "--resume");
    await second.runs(join(out, "rollouts/g0-0/2/output.log"));
    second.interrupt();
    await second.says("draining");
    second.interrupt();
    expect(await second.ended, second.output()).toBe(130);
    // Sidecar and backend see that they are alone; the harness is told.
    while (leftovers(out).length > 0) await new Promise((look) => setTimeout(look, 20));
  });
});
