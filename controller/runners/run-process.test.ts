import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { afterAll, describe, expect, it } from "vitest";
import { findByEnvironment, identifyProcess, type ProcessIdentity } from "./process-identity.ts";
import { type ProcessEnd, type ProcessSpec, runProcess } from "./run-process.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-process-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
let count = 0;

function start(script: string, over: Partial<ProcessSpec> = {}) {
  const outputFile = join(folder, `${++count}.log`);
  const mark = `mark-${process.pid}-${count}`;
  const controller = new AbortController();
  let seen: (identity: ProcessIdentity) => void = () => undefined;
  const started = new Promise<ProcessIdentity>((resolve) => {
    seen = resolve;
  });
  const end: Promise<ProcessEnd> = runProcess(
    {
      command: [process.execPath, "-e", script],
      cwd: folder,
      environment: { PATH: process.env["PATH"] ?? "", OUTRIGGER_TEST_MARK: mark },
      outputFile,
      maxOutputBytes: 10_000,
      timeoutMs: 20_000,
      killGraceMs: 100,
      ...over,
    },
    controller.signal,
    (identity) => seen(identity),
  );
  return {
    end,
    started,
    abort: () => controller.abort(),
    output: () => readFileSync(outputFile, "utf8"),
    leftovers: () => findByEnvironment({ OUTRIGGER_TEST_MARK: mark }),
  };
}

describe("runProcess", () => {
  it("gives the exit code and keeps both streams", async () => {
    const run = start("console.log('out'); console.error('err'); process.exitCode = 3");
    expect(await run.end).toEqual({ kind: "exited", exitCode: 3 });
    expect(run.output()).toContain("out\n");
    expect(run.output()).toContain("err\n");
  });

  it("inherits nothing", async () => {
    const run = start("console.log(JSON.stringify(Object.keys(process.env).sort()))");
    await run.end;
    expect(JSON.parse(run.output())).toEqual(["OUTRIGGER_TEST_MARK", "PATH"]);
  });

  it("ends what runs too long, SIGTERM ignored, and everything it has started", async () => {
    const child = "setInterval(() => {}, 1000)";
    const run = start(
      `process.on("SIGTERM", () => {});
       require("node:child_process").spawn(process.execPath, ["-e", ${JSON.stringify(child)}]);
       setInterval(() => {}, 1000)`,
      { timeoutMs: 1_000 },
    );
    expect(await run.end).toEqual({ kind: "timed-out" });
    expect(run.leftovers()).toEqual([]);
  });

  it("ends with its signal", async () => {
    const run = start("setInterval(() => {}, 1000)");
    const identity = await run.started;
    expect(identifyProcess(identity.pid)).toEqual(identity);
    run.abort();
    expect(await run.end).toEqual({ kind: "cancelled" });
    expect(identifyProcess(identity.pid)).toBeUndefined();
  });

  it("tells a kill from outside", async () => {
    const run = start("setInterval(() => {}, 1000)");
    process.kill((await run.started).pid, "SIGKILL");
    expect(await run.end).toEqual({ kind: "killed", signal: "SIGKILL" });
  });

  const leaves = (environment: string): string =>
    `const child = require("node:child_process").spawn(
       process.execPath, ["-e", "setInterval(() => {}, 1000)"],
       { detached: true, stdio: "inherit", env: ${environment} });
     child.unref();
     console.log(child.pid);`;

  it.runIf(process.platform === "linux")(
    "ends a child that was left in a session of its own",
    async () => {
      const run = start(leaves("process.env"), { marks: ["OUTRIGGER_TEST_MARK"] });
      expect(await run.end).toEqual({ kind: "exited", exitCode: 0 });
      const left = (): unknown => identifyProcess(Number(run.output()));
      await expect.poll(left, { timeout: 10_000 }).toBeUndefined();
    },
  );

  it("does not wait for output that a child which hid itself holds open", async () => {
    const run = start(leaves("{}"), { marks: ["OUTRIGGER_TEST_MARK"] });
    expect(await run.end).toEqual({ kind: "exited", exitCode: 0 });
    const hidden = Number(run.output());
    expect(identifyProcess(hidden)).toBeDefined();
    process.kill(hidden, "SIGKILL");
  });

  it("says why a program cannot be started", async () => {
    const run = start("", { command: ["/no/such/program"] });
    expect(await run.end).toMatchObject({ kind: "not-started" });
    expect(JSON.stringify(await run.end)).toContain("ENOENT");
  });

  it("bounds the output and says that it was cut", async () => {
    const run = start("process.stdout.write('x'.repeat(300000))");
    expect(await run.end).toEqual({ kind: "exited", exitCode: 0 });
    expect(run.output()).toBe(`${"x".repeat(10_000)}\n[output cut after 10000 bytes]\n`);
  });
});
