import { describe, expect, it } from "vitest";
import { createActiveGroups } from "./active-groups.ts";

const group = (groupId: string, admittedVersion: number) => {
  const rolloutIds = [`${groupId}-0`, `${groupId}-1`];
  return {
    groupId,
    admittedVersion,
    rolloutIds,
    unfinished: new Set(rolloutIds),
    lastProgressAtMs: 100,
  };
};

describe("createActiveGroups", () => {
  it("gives the schedule what has ended, and counts an end once", () => {
    const groups = createActiveGroups();
    groups.add(group("a", 2));
    expect(groups.rolloutEnded("a-0", 1, 160)).toBe(true);
    expect(groups.rolloutEnded("a-0", 1, 190)).toBe(false);
    expect(groups.rolloutEnded("eval-0-3", 1, 190)).toBe(false);
    expect(groups.toSchedule(100)).toEqual([
      {
        groupId: "a",
        earliestVersion: 2,
        rolloutCount: 2,
        unfinishedRolloutCount: 1,
        lastProgressAtMs: 60,
      },
    ]);
  });

  it("forgets a group that an update has taken, with its rewards", () => {
    const groups = createActiveGroups();
    groups.add(group("a", 1));
    groups.add(group("b", 3));
    groups.rolloutEnded("a-0", 1, 160);
    groups.rolloutEnded("b-0", 0, 160);
    expect(groups.progress(3)).toEqual({ rolloutsDone: 2, meanReward: 0.5, staleness: 2 });
    expect(groups.remove("a")?.groupId).toBe("a");
    expect(groups.progress(3)).toEqual({ rolloutsDone: 1, meanReward: 0, staleness: 0 });
    expect(groups.rolloutEnded("a-1", 1, 170)).toBe(false);
  });
});
