import { describe, expect, it } from "vitest";
import type { ScheduleGroup, ScheduleState } from "./schedule-state.ts";
import {
  admissionRoom,
  assertStaleness,
  completeOldestFirst,
  isTrainableAfterUpdate,
} from "./staleness-rule.ts";

const group = (earliestVersion: number | undefined, unfinished = 0): ScheduleGroup => ({
  groupId: `v${earliestVersion}u${unfinished}`,
  ...(earliestVersion === undefined ? {} : { earliestVersion }),
  rolloutCount: 2,
  unfinishedRolloutCount: unfinished,
  lastProgressAtMs: 0,
});
const state = (groups: ScheduleGroup[], isTraining = false): ScheduleState => ({
  nowMs: 0,
  version: 5,
  stepsLeft: 10,
  waitingGroupCount: 10,
  groups,
  gate: "open",
  trainer: isTraining ? { state: "stepping", groupIds: [] } : { state: "idle" },
});

describe("isTrainableAfterUpdate at version 5, two groups per step, k = 2", () => {
  const rule = { groupsPerStep: 2, maxStaleness: 2 };
  it.each([
    [[], true],
    [[5, 5, 5, 5], true],
    [[5, 5, 5, 5, 5], false],
    [[4, 4], true],
    [[4, 4, 4], false],
    [[4, 4, 5, 5], true],
    // Due by version 5: this update was its last.
    [[3], false],
    [[undefined, undefined, 4, 4], true],
  ] as const)("groups left behind %j: %s", (versions, expected) => {
    expect(
      isTrainableAfterUpdate(
        versions.map((v) => group(v)),
        5,
        rule,
      ),
    ).toBe(expected);
  });
});

describe("admissionRoom", () => {
  it.each([
    [0, 0, false, 2],
    [0, 2, false, 0],
    [0, 0, true, 0],
    [2, 1, false, 5],
    [2, 1, true, 3],
    [2, 9, false, 0],
  ])("k = %i, %i groups, training %s: %i", (maxStaleness, count, isTraining, room) => {
    const groups = Array.from({ length: count }, () => group(5, 1));
    expect(admissionRoom(state(groups, isTraining), { groupsPerStep: 2, maxStaleness })).toBe(room);
  });
});

describe("completeOldestFirst", () => {
  it("leaves incomplete groups out and sorts by version, then admission", () => {
    const groups = [group(5), group(undefined), group(3, 1), group(4)];
    expect(completeOldestFirst(state(groups)).map((g) => g.groupId)).toEqual([
      "v4u0",
      "v5u0",
      "vundefinedu0",
    ]);
  });
});

describe("assertStaleness", () => {
  const rule = { groupsPerStep: 2, maxStaleness: 1 };
  it("passes at the bound and stops above it, naming the group", () => {
    expect(() => assertStaleness([group(4), group(undefined)], 5, rule)).not.toThrow();
    expect(() => assertStaleness([group(3)], 5, rule)).toThrow("group v3u0 at staleness 2");
  });
});
