import { describe, expect, it } from "vitest";
import { decideSchedule, type ScheduleSettings } from "./decide-schedule.ts";
import type { ScheduleGroup, ScheduleState } from "./schedule-state.ts";

const settings: ScheduleSettings = {
  kind: "collocated-async",
  groupsPerStep: 2,
  maxStaleness: 1,
  onStale: "wait",
  tail: { kind: "wait" },
  targetRolloutCount: 4,
};
const group = (groupId: string, earliestVersion: number, unfinished: number): ScheduleGroup => ({
  groupId,
  earliestVersion,
  rolloutCount: 4,
  unfinishedRolloutCount: unfinished,
  lastProgressAtMs: 100,
});
const open: ScheduleState = {
  nowMs: 150,
  version: 3,
  stepsLeft: 5,
  waitingGroupCount: 9,
  groups: [],
  gate: "open",
  trainer: { state: "idle" },
};
const twoComplete = [group("a", 3, 0), group("b", 3, 0)];
const oldBlocks = [...twoComplete, group("old", 2, 1)];
const stepped = { state: "stepped", groupIds: ["x"] } as const;
const stepping = { state: "stepping", groupIds: ["x"] } as const;
const publishing = { state: "publishing", groupIds: ["x"] } as const;
const startAB = { type: "start-update", version: 3, groupIds: ["a", "b"] };
const admit1 = { type: "admit", groupCount: 1 };

describe("decideSchedule, collocated-async", () => {
  it.each<[string, Partial<ScheduleState>, unknown[]]>([
    ["admits while rollouts are too few", { groups: [group("a", 3, 3)] }, [admit1]],
    ["does not admit while the engine is busy", { groups: [group("a", 3, 4)] }, []],
    [
      "does not admit above the capacity that the bound leaves",
      { groups: [1, 2, 3, 4].map((n) => group(`g${n}`, 3, n === 1 ? 0 : 1)) },
      [],
    ],
    ["pauses when an update can start", { groups: twoComplete }, [{ type: "pause" }]],
    ["waits for the engine to drain", { groups: twoComplete, gate: "draining" }, []],
    ["trains when it has drained", { groups: twoComplete, gate: "drained" }, [startAB]],
    [
      "holds an update up for an old group that would become too old",
      { groups: oldBlocks, waitingGroupCount: 0, stepsLeft: 2 },
      [],
    ],
    [
      "takes the oldest version first",
      { groups: [...twoComplete, group("old", 2, 0)], gate: "drained" },
      [{ type: "start-update", version: 3, groupIds: ["old", "a"] }],
    ],
    ["does nothing while it trains", { trainer: stepping, gate: "drained" }, []],
    [
      "publishes after the step",
      { trainer: stepped, gate: "drained" },
      [{ type: "publish", version: 4 }],
    ],
    ["waits for the publication", { trainer: publishing, gate: "drained" }, []],
    [
      "admits before it opens the gate",
      { gate: "drained", groups: [group("a", 3, 1)] },
      [admit1, { type: "resume" }],
    ],
    ["trains again without opening the gate", { gate: "drained", groups: twoComplete }, [startAB]],
    [
      "makes a last, smaller update of what is left",
      { gate: "drained", groups: [group("a", 3, 0)], waitingGroupCount: 0 },
      [{ type: "start-update", version: 3, groupIds: ["a"] }],
    ],
    ["is done when no step is left", { stepsLeft: 0, groups: twoComplete }, []],
    [
      "admits no more than the steps left can train",
      { stepsLeft: 1, groups: [group("a", 3, 0), group("b", 3, 1)] },
      [],
    ],
  ])("%s", (_name, facts, actions) => {
    expect(decideSchedule({ ...open, ...facts }, settings)).toEqual(actions);
  });

  it("stops rather than train above the bound", () => {
    const tooOld = [group("a", 1, 0), group("b", 3, 0)];
    expect(() => decideSchedule({ ...open, gate: "drained", groups: tooOld }, settings)).toThrow(
      "group a at staleness 2, above the bound 1",
    );
  });
});

describe("decideSchedule, other schedules", () => {
  it("sync admits one batch at once, and only when the last one is trained", () => {
    const sync = { ...settings, kind: "sync" as const, maxStaleness: 7 };
    expect(decideSchedule(open, sync)).toEqual([{ type: "admit", groupCount: 2 }]);
    const busy = [group("a", 3, 0), group("b", 3, 1)];
    expect(decideSchedule({ ...open, groups: busy }, sync)).toEqual([]);
  });

  const own = { ...settings, kind: "async" as const };
  it.each<[string, Partial<ScheduleState>, unknown[]]>([
    ["trains with the gate open", { groups: twoComplete }, [startAB]],
    ["goes on admitting while it trains", { trainer: stepping }, [admit1]],
    [
      "shuts the gate only to publish",
      { trainer: stepped },
      [{ type: "pause" }, { type: "publish", version: 4 }],
    ],
    [
      "does not wait for a drain",
      { trainer: stepped, gate: "draining" },
      [{ type: "publish", version: 4 }],
    ],
    ["opens it after", { gate: "draining", groups: [group("a", 3, 4)] }, [{ type: "resume" }]],
  ])("async %s", (_name, facts, actions) => {
    expect(decideSchedule({ ...open, ...facts }, own)).toEqual(actions);
  });
});

describe("decideSchedule, stale groups and stragglers", () => {
  const drop = { ...settings, onStale: "drop" as const };
  it("drops what no update may train any more, and nothing else", () => {
    const groups = [group("gone", 1, 1), group("last-chance", 2, 1)];
    expect(decideSchedule({ ...open, groups }, drop)).toEqual([{ type: "drop", groupId: "gone" }]);
  });

  it("does not hold an update up for an old group", () => {
    expect(decideSchedule({ ...open, groups: oldBlocks }, drop)).toEqual([{ type: "pause" }]);
  });

  const tail = { kind: "cut", minFinishedShare: 0.75, graceMs: 60 } as const;
  const cut = { ...settings, tail };
  const held = { ...open, groups: oldBlocks, waitingGroupCount: 0, stepsLeft: 2 };
  it("cuts the straggler that holds an update up, after the grace time", () => {
    expect(decideSchedule(held, cut)).toEqual([{ type: "wake", atMs: 160 }]);
    expect(decideSchedule({ ...held, nowMs: 160 }, cut)).toEqual([{ type: "cut", groupId: "old" }]);
  });

  it("cuts no group of which too little has ended", () => {
    const groups = [...twoComplete, group("old", 2, 2)];
    expect(decideSchedule({ ...held, nowMs: 999, groups }, cut)).toEqual([]);
  });
});
