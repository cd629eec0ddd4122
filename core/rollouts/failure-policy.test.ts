import { describe, expect, it } from "vitest";
import { attemptEndReasons } from "./attempt-end-reason.ts";
import { defaultFailurePolicy, resolveOutcome } from "./failure-policy.ts";

describe("default failure policy", () => {
  // reason, graded reward -> reward, trained, in baseline, re-queues, alarm
  it.each([
    ["succeeded", 0.5, 0.5, true, true, 0, false],
    ["truncated", 0.25, 0.25, true, true, 0, false],
    ["agent-error", 0.9, 0, true, true, 0, false],
    ["timed-out", undefined, 0, true, true, 0, false],
    ["evicted", 1, undefined, false, false, 3, false],
    ["infra-error", 1, undefined, false, false, 2, false],
    ["never-called", 1, undefined, false, false, 0, true],
    ["cancelled", 1, undefined, false, false, 0, false],
  ] as const)(
    "%s graded %s",
    (reason, graded, reward, isTrainable, isInBaseline, maxRequeues, isAlarm) => {
      const outcome = resolveOutcome(reason, graded, defaultFailurePolicy);
      expect(outcome.reward).toBe(reward);
      expect(outcome).toMatchObject({ isTrainable, isInBaseline });
      expect(defaultFailurePolicy[reason]).toMatchObject({ maxRequeues, isAlarm });
      expect(outcome.exclusion).toBe(isTrainable ? undefined : "masked-by-policy");
    },
  );

  it("has a rule for every reason", () => {
    expect(Object.keys(defaultFailurePolicy).toSorted()).toEqual([...attemptEndReasons].toSorted());
  });
});

describe("resolveOutcome", () => {
  it("never turns a missing reward into a zero by itself", () => {
    const outcome = resolveOutcome("succeeded", undefined, defaultFailurePolicy);
    expect(outcome).toEqual({
      isTrainable: false,
      isInBaseline: false,
      exclusion: "reward-missing",
    });
  });

  it("uses the experiment's value for a missing reward, and only for a missing one", () => {
    const succeeded = {
      ...defaultFailurePolicy.succeeded,
      reward: { kind: "graded", whenMissing: -1 },
    } as const;
    const policy = { ...defaultFailurePolicy, succeeded };
    expect(resolveOutcome("succeeded", undefined, policy).reward).toBe(-1);
    expect(resolveOutcome("succeeded", 0, policy).reward).toBe(0);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])("refuses the reward %s", (reward) => {
    expect(resolveOutcome("succeeded", reward, defaultFailurePolicy)).toEqual({
      isTrainable: false,
      isInBaseline: false,
      exclusion: "reward-not-finite",
    });
  });

  it("can count an ending in the baseline without training it", () => {
    const rule = { ...defaultFailurePolicy["timed-out"], isTrainable: false };
    const policy = { ...defaultFailurePolicy, "timed-out": rule };
    expect(resolveOutcome("timed-out", 1, policy)).toEqual({
      reward: 0,
      isTrainable: false,
      isInBaseline: true,
      exclusion: "masked-by-policy",
    });
  });
});
