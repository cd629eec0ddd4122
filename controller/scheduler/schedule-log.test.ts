import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pino } from "pino";
import { afterAll, beforeEach, describe, expect, it } from "vitest";
import { defaultFailurePolicy } from "../../core/rollouts/failure-policy.ts";
import { openRunStores, type RunStores } from "../store/open-run-stores.ts";
import { openScheduleLog } from "./schedule-log.ts";

const root = mkdtempSync(join(tmpdir(), "outrigger-schedule-log-"));
const opened: RunStores[] = [];
afterAll(async () => {
  for (const stores of opened) await stores.close();
  rmSync(root, { recursive: true, force: true });
});

let file = "";
let stores: RunStores;
const open = () =>
  openScheduleLog({ file, runStartedAtMs: 1_000, stores, log: pino({ level: "silent" }) });
const lines = () => readFileSync(file, "utf8").trimEnd().split("\n");

beforeEach(async () => {
  const home = mkdtempSync(join(root, "run-"));
  file = join(home, "schedule.jsonl");
  stores = await openRunStores(home);
  opened.push(stores);
});

async function admit(groupIndex: number, atMs: number): Promise<void> {
  const groupId = `g${groupIndex}`;
  const rollout = {
    rolloutId: `${groupId}-0`,
    groupId,
    mode: "train",
    purpose: "train",
    taskId: "t",
    input: {},
  } as const;
  const group = { groupId, groupIndex, taskId: "t", admittedVersion: 0 };
  await stores.steps.admitGroup(group, [rollout], atMs);
}

describe("openScheduleLog", () => {
  it("appends what is decided, and a new session puts in what a kill kept from the file", async () => {
    await admit(0, 1_010);
    (await open()).append({ t: 11, type: "admit", groupId: "g0" });
    await admit(1, 1_020);
    const cancel = { type: "cancel-requested" } as const;
    await stores.rollouts.end("g0-0", cancel, {}, defaultFailurePolicy, 1_030);
    // Half a line: the machine went down in the middle of a write.
    appendFileSync(file, '{"t":31,"ty');
    await open();
    expect(lines()).toEqual([
      '{"t":11,"type":"admit","groupId":"g0"}',
      '{"t":20,"type":"admit","groupId":"g1"}',
      '{"t":30,"type":"rollout-end","rolloutId":"g0-0"}',
    ]);
  });

  it("leaves a file alone that is no log", async () => {
    writeFileSync(file, "someone wrote here\n");
    await (await open()).complete();
    expect(lines()).toEqual(["someone wrote here"]);
  });
});
