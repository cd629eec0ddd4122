import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import process from "node:process";
import { afterAll, expect, it } from "vitest";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");
const root = mkdtempSync(join(tmpdir(), "outrigger-pipe-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** Starts a command and reads no more of its output than the first bytes. */
function outriggerUnread(args: readonly string[], environment: Record<string, string> = {}) {
  const child = spawn(process.execPath, [executable, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ...environment },
  });
  let errors = "";
  child.stderr.on("data", (chunk: Buffer) => {
    errors += chunk.toString();
  });
  child.stdout.once("data", () => child.stdout.destroy());
  return new Promise<{ code: number | null; errors: string }>((done) =>
    child.once("exit", (code) => done({ code, errors })),
  );
}

it("a command that prints ends quietly when nobody reads on", async () => {
  const ended = await outriggerUnread(["simulate", "generate", "--steps", "200"]);
  expect(ended).toEqual({ code: 0, errors: "" });
});

it("a run goes on to its end when nobody reads on, and past a proxy that is not there", async () => {
  const schedule = { steps: 1, groupsPerStep: 2, groupSize: 2 };
  const file = await writeTinyExperiment(root, {
    schedule,
    evaluation: { before: false, after: false },
  });
  const out = join(root, "run");
  const proxy = "http://127.0.0.1:2";
  const environment = { http_proxy: proxy, https_proxy: proxy, grpc_proxy: proxy, no_proxy: "" };
  const { code, errors } = await outriggerUnread(["run", file, "--out", out], environment);
  expect(code, errors).toBe(0);
  const result = JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as object;
  expect(result).toMatchObject({ state: "done", steps: 1 });
});
