import { type ChildProcess, execFile, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { PolicyControl } from "../../controller/api/http-api.ts";
import type { RunResult } from "../../controller/report/build-result.ts";
import { checkScheduleLog } from "../../core/scheduling/check-schedule-log.ts";
import { parseScheduleLog } from "../../core/scheduling/schedule-event.ts";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const outrigger = resolve(import.meta.dirname, "../../bin/outrigger.js");
let directory: string;

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "policy-rollback-"));
});
afterAll(() => rmSync(directory, { recursive: true }));

const cli = async (...args: string[]): Promise<string> =>
  (await promisify(execFile)(process.execPath, [outrigger, ...args])).stdout;

/** Enough that the run still goes on when the commands have started on a busy machine. */
const steps = 12;

type PolicyView = Awaited<ReturnType<PolicyControl["list"]>>;

/** Until the view of a live run is as wanted; a run that ends before fails. */
async function until(
  run: string,
  child: ChildProcess,
  isWanted: (view: PolicyView) => boolean,
): Promise<PolicyView> {
  const pause = async (): Promise<void> => {
    if (child.exitCode !== null) throw new Error(`the run ended with ${child.exitCode}`);
    await new Promise((go) => setTimeout(go, 50));
  };
  while (!existsSync(join(run, "controller.json"))) await pause();
  const { apiUrl } = JSON.parse(readFileSync(join(run, "controller.json"), "utf8")) as {
    apiUrl: string;
  };
  const token = readFileSync(join(run, "admin-token"), "utf8");
  for (;;) {
    const response = await fetch(`${apiUrl}/v1/policy`, {
      headers: { authorization: `Bearer ${token}` },
    });
    const view = (await response.json()) as PolicyView;
    if (isWanted(view)) return view;
    await pause();
  }
}

it("a run goes back to a checkpoint by one command, and on from there under new versions", async () => {
  const file = await writeTinyExperiment(join(directory, "tiny"), {
    schedule: { steps, groupsPerStep: 1, groupSize: 4 },
    evaluation: { before: false, after: false },
    retention: { checkpointEverySteps: 1 },
  });
  const out = join(directory, "out");
  const child = spawn(process.execPath, [outrigger, "run", file, "--out", out], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let output = "";
  child.stdout.on("data", (text: Buffer) => {
    output += text.toString();
  });
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
  const before = await until(out, child, ({ checkpoints }) => checkpoints.length > 0);
  expect(before.checkpoints[0]).toMatchObject({ name: "step-1", version: 1, step: 1 });

  const failed = await cli("policy", "rollback", "best", "--run", out).catch((e: unknown) => e);
  expect((failed as { stderr: string }).stderr).toContain("this run has no checkpoint best");
  const said = JSON.parse(await cli("policy", "rollback", "step-1", "--run", out, "--json")) as {
    version: number;
  };
  expect(said.version).toBeGreaterThan(1);
  const view = JSON.parse(await cli("policy", "list", "--run", out, "--json")) as PolicyView;
  expect(view.rollbacks).toMatchObject([{ checkpoint: "step-1", version: said.version }]);

  expect(await ended).toBe(0);
  expect(output).toContain(`rolled back to step-1, now version ${said.version}`);
  const result = JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as RunResult;
  // The updates and one rollback, each a version of its own.
  expect(result).toMatchObject({ state: "done", steps, policyVersion: steps + 1 });
  const log = parseScheduleLog(readFileSync(join(out, "schedule.jsonl"), "utf8"));
  const published = log.flatMap((event) => (event.type === "publish" ? [event.version] : []));
  expect(published).toEqual(Array.from({ length: steps + 1 }, (_, i) => i + 1));
  const violations = checkScheduleLog(log, {
    maxStaleness: 0,
    isDeviceShared: true,
    // From a command's being given to its being there, on a slow machine.
    commandDelayMs: 1_000,
    groupIdOf: (rolloutId) => rolloutId.slice(0, rolloutId.lastIndexOf("-")),
    turnCountOf: () => undefined,
    rolloutIdsOf: (groupId) => [0, 1, 2, 3].map((i) => `${groupId}-${i}`),
  });
  expect(violations).toEqual([]);
  // It can still be resumed: the versions of the run and of the backend belong together.
  const more = await cli("run", file, "--out", out, "--resume", "--steps", String(steps + 1));
  expect(more).toContain(`${steps + 1} steps`);
});
