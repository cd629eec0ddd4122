import { describe, expect, it } from "vitest";
import { type GateView, pauseProgress } from "./pause-progress.ts";

const view = (change: Partial<GateView>): GateView => ({
  sidecarId: "s",
  connected: true,
  lastSeenAtMs: 1000,
  reportedCommandId: "c",
  drained: true,
  ...change,
});

describe("pauseProgress", () => {
  it.each([
    ["drained", {}, "drained", true, undefined],
    ["still draining", { drained: false }, "draining", false, undefined],
    ["a report on an older command", { reportedCommandId: "b" }, "draining", false, undefined],
    ["no report yet", { reportedCommandId: undefined }, "draining", false, undefined],
    ["gone a moment ago", { connected: false }, "draining", false, 6000],
    ["gone for long", { connected: false, lastSeenAtMs: -3000 }, "away", true, undefined],
  ] as const)("%s", (_, change, state, isSettled, recheckAtMs) => {
    const progress = pauseProgress([view(change)], "c", 2000, 5000);
    expect(progress).toEqual({ isSettled, recheckAtMs, sidecars: [{ sidecarId: "s", state }] });
  });

  it("waits for every one, and is settled without any", () => {
    expect(pauseProgress([view({}), view({ drained: false })], "c", 0, 1).isSettled).toBe(false);
    expect(pauseProgress([], "c", 0, 1).isSettled).toBe(true);
  });
});
