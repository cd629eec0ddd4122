import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it, vi } from "vitest";
import type { Workload } from "../../core/scheduling/workload.ts";
import { simulateCommand } from "./simulate.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-simulate-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const golden = (name: string) =>
  new URL(`../../test/golden/schedules/${name}`, import.meta.url).pathname;
const outrigger = (...args: string[]) =>
  simulateCommand().exitOverride().parseAsync(args, { from: "user" });

describe("outrigger simulate", () => {
  it("writes the report and the event log", async () => {
    const json = join(folder, "report.json");
    const log = join(folder, "log.jsonl");
    const options = ["--staleness", "1", "--target-rollouts", "2", "--json", json, "--log", log];
    await outrigger(golden("tiny-workload.json"), ...options);
    expect(readFileSync(log, "utf8")).toBe(readFileSync(golden("tiny-collocated.jsonl"), "utf8"));
    expect(JSON.parse(readFileSync(json, "utf8"))).toMatchObject({
      format: "outrigger-schedule-report/1",
      schedule: "collocated-async",
      stalenessBound: 1,
      durationMs: 63,
      // Worked out by hand: sync takes 68 ms.
      gainOverSync: 68 / 63,
    });
  });

  it("simulates what it generates", async () => {
    const workload = join(folder, "w.json");
    const json = join(folder, "generated.json");
    await outrigger("generate", "--steps", "2", "--seed", "5", "--out", workload);
    await outrigger(workload, "--schedule", "async", "--staleness", "2", "--json", json);
    expect(JSON.parse(readFileSync(json, "utf8"))).toMatchObject({
      stepCount: 2,
      groups: { trained: 16, dropped: 0 },
    });
  });

  it.each([
    ["a time that is no time", { callMs: 1e308 }, {}, "callMs"],
    [
      "more steps than there are groups for",
      {},
      { steps: 3 },
      "3 steps of 1 groups need 3 groups; there are 2, enough for 2 steps",
    ],
  ])("refuses %s", async (_what, turn, fields, message) => {
    const tiny = JSON.parse(readFileSync(golden("tiny-workload.json"), "utf8")) as Workload;
    Object.assign(tiny.groups[0]?.rollouts[0]?.turns[0] ?? {}, turn);
    const path = join(folder, "bad.json");
    writeFileSync(path, JSON.stringify({ ...tiny, ...fields }));
    await expect(outrigger(path)).rejects.toThrow(message);
  });

  it("says how many steps were done where dropped groups leave too few", async () => {
    const said = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const workload = join(folder, "dropping.json");
    const sizes = ["--groups-per-step", "2", "--group-size", "4", "--slots", "2", "--sigma", "2"];
    await outrigger("generate", "--steps", "6", ...sizes, "--out", workload);
    await outrigger(
      workload,
      "--schedule",
      "async",
      "--staleness",
      "1",
      "--on-stale",
      "drop",
      "--target-rollouts",
      "40",
    );
    expect(said.mock.calls.join()).toMatch(
      /only 5 of 6 steps, with 9 of 12 groups: 3 were dropped/,
    );
    said.mockRestore();
  });

  it.each([
    [["w", "--staleness", "1001"], "whole number from 0 to 1000"],
    [["w", "--cut-grace-ms", "1e308"], "number from 0 to 1e12"],
    [["generate", "--steps", "999999999"], "more than 1000000"],
  ])("refuses %j", async (args, message) => {
    const said = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    await expect(outrigger(...args)).rejects.toThrow(message);
    said.mockRestore();
  });

  it("reports what a log says by itself", async () => {
    const json = join(folder, "log-report.json");
    await outrigger("report", golden("tiny-collocated.jsonl"), "--json", json);
    const log = readFileSync(golden("tiny-collocated.jsonl"), "utf8");
    expect(JSON.parse(readFileSync(json, "utf8"))).toMatchObject({
      stepCount: log.match(/"publish"/g)?.length,
      durationMs: 63,
      groups: { admitted: log.match(/"admit"/g)?.length, dropped: 0, unfinished: 0 },
    });
  });

  it.each([
    ["a log that is missing", ["report", join(folder, "none.jsonl")], "cannot read"],
    ["a log that is none", ["report", golden("README.md")], "line 1"],
    ["a missing file", [join(folder, "none.json")], "cannot be read"],
    ["a file that is no JSON", [golden("README.md")], "is not JSON"],
    [
      "a folder that is missing",
      [golden("tiny-workload.json"), "--log", "/none/x"],
      "cannot write",
    ],
  ])("says what is wrong with %s", async (_name, args, message) => {
    await expect(outrigger(...args)).rejects.toThrow(message);
  });
});
