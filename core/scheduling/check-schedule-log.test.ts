import { describe, expect, it } from "vitest";
import { checkScheduleLog } from "./check-schedule-log.ts";
import { parseScheduleLog, type ScheduleEvent } from "./schedule-event.ts";

const limits = {
  maxStaleness: 0,
  isDeviceShared: true,
  slotCount: 1,
  groupIdOf: (rolloutId: string) => rolloutId.slice(0, 1),
  turnCountOf: () => 1,
  rolloutIdsOf: (groupId: string) => [`${groupId}1`],
};
const call = (rolloutId: string, version = 0): ScheduleEvent[] => [
  { t: 1, type: "call-start", rolloutId, turn: 0, version },
  { t: 2, type: "call-end", rolloutId, turn: 0 },
];
const a: ScheduleEvent = { t: 0, type: "admit", groupId: "a" };
const aEnds: ScheduleEvent = { t: 2, type: "rollout-end", rolloutId: "a1" };
const pause: ScheduleEvent = { t: 2, type: "pause" };
const train = (version: number, ...groups: string[]): ScheduleEvent[] => [
  { t: 3, type: "train-start", version, groups },
  { t: 4, type: "train-end" },
  { t: 5, type: "publish", version: version + 1 },
];

describe("checkScheduleLog", () => {
  it("accepts a sound log", () => {
    expect(checkScheduleLog([a, ...call("a1"), aEnds, pause, ...train(0, "a")], limits)).toEqual(
      [],
    );
  });

  it("accepts an update that a restart starts again, and one that had nothing to learn", () => {
    const start = train(0, "a").slice(0, 1);
    const sound = [a, ...call("a1"), aEnds, pause, ...start, ...train(0, "a")];
    expect(checkScheduleLog(sound, limits)).toEqual([]);
    const idle: ScheduleEvent = { t: 5, type: "publish", version: 0 };
    const unchanged = [a, ...call("a1"), aEnds, pause, ...train(0, "a").slice(0, 2), idle];
    expect(checkScheduleLog(unchanged, limits)).toEqual([]);
  });

  it("accepts an update that a restart starts again after its end", () => {
    const later = train(0, "a").map((event) => ({ ...event, t: event.t + 2 }));
    const sound = [a, ...call("a1"), aEnds, pause, ...train(0, "a").slice(0, 2), ...later];
    expect(checkScheduleLog(sound, limits)).toEqual([]);
  });

  describe("of processes that talk to each other", () => {
    const recorded = { ...limits, commandDelayMs: 50 };
    const at = (t: number, version = 0): ScheduleEvent[] => [
      { t, type: "call-start", rolloutId: "b1", turn: 0, version },
      { t: t + 1, type: "call-end", rolloutId: "b1", turn: 0 },
    ];
    const b: ScheduleEvent = { t: 0, type: "admit", groupId: "b" };
    const drained: ScheduleEvent = { t: 2, type: "drained" };

    it("lets a call slip through while the command is on its way, not later", () => {
      expect(checkScheduleLog([b, pause, ...at(52)], recorded)).toEqual([]);
      expect(checkScheduleLog([b, pause, ...at(53)], recorded).join()).toContain("gate is shut");
      expect(checkScheduleLog([b, pause, drained, ...at(3)], recorded).join()).toContain("shut");
    });

    it("knows a new version while it is published, and the old one for a moment after", () => {
      const own = { ...recorded, isDeviceShared: false };
      const trained = [a, b, ...call("a1"), aEnds, ...train(0, "a").slice(0, 1)];
      const published: ScheduleEvent[] = [
        { t: 60, type: "train-end" },
        { t: 60, type: "pause" },
        { t: 60, type: "publish", version: 1 },
        { t: 60, type: "resume" },
      ];
      expect(checkScheduleLog([...trained, ...at(4, 1), ...published], own)).toEqual([]);
      expect(checkScheduleLog([...trained, ...published, ...at(100, 0)], own)).toEqual([]);
      const late = checkScheduleLog([...trained, ...published, ...at(120, 0)], own);
      expect(late.join()).toContain("calls at 0, not 1");
    });
  });

  it.each<[string, ScheduleEvent[], string]>([
    [
      "another update while one runs",
      [a, pause, ...train(0).slice(0, 1), ...train(0, "a")],
      "while another runs",
    ],
    ["a version left out", [pause, { t: 3, type: "publish", version: 2 }], "publishes 2 after 0"],
    ["a call behind a shut gate", [a, { t: 0, type: "pause" }, ...call("a1")], "gate is shut"],
    ["training twice", [a, ...call("a1"), aEnds, pause, ...train(0, "a", "a")], "but training"],
    ["training before the end", [a, ...call("a1"), pause, ...train(0, "a")], "before a1 ended"],
    ["training half a rollout", [a, aEnds, pause, ...train(0, "a")], "after 0 of 1 calls"],
    [
      "training above the bound",
      [a, ...call("a1"), aEnds, pause, ...train(0), ...train(1, "a")],
      "at staleness 1",
    ],
    ["a call of another version", [a, ...call("a1", 3)], "calls at 3, not 0"],
    ["publishing with the gate open", [a, ...train(0)], "gate open"],
    [
      "publishing before the update has ended",
      [a, pause, ...train(0).slice(0, 1), ...train(0).slice(2)],
      "before the update has ended",
    ],
    [
      "too many calls",
      [a, { t: 0, type: "admit", groupId: "b" }, ...call("a1").slice(0, 1), ...call("b1")],
      "2 calls in flight",
    ],
    [
      "training with calls in flight",
      [a, ...call("a1").slice(0, 1), pause, ...train(0)],
      "with 1 in flight",
    ],
    ["two admissions", [a, a], "admitted twice"],
    [
      "a drop of a trained group",
      [a, ...call("a1"), aEnds, pause, ...train(0, "a"), { t: 9, type: "drop", groupId: "a" }],
      "cannot be dropped",
    ],
  ])("finds %s", (_name, log, message) => {
    expect(checkScheduleLog(log, limits).join("\n")).toContain(message);
  });
});

describe("parseScheduleLog", () => {
  it.each([
    ['{"t":1,"type":"pause"}\n{"t":0,"type":"resume"}', "line 2: t goes back from 1 to 0"],
    ["\n{", "line 2: is not JSON"],
    ['{"t":1,"type":"nap"}', "line 1:"],
    ['{"t":-1,"type":"pause"}', "line 1:"],
  ])("refuses %j", (text, message) => {
    expect(() => parseScheduleLog(text)).toThrow(message);
  });
});
