import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type LearningRateSchedule, learningRateAt } from "./learning-rate.ts";

const constant: LearningRateSchedule = { warmupSteps: 0, decay: "none", minRatio: 0 };
const rates = (schedule: Partial<LearningRateSchedule>, steps: number): number[] =>
  Array.from({ length: steps }, (_, i) =>
    learningRateAt(1, { ...constant, ...schedule }, i + 1, steps),
  );

describe("learningRateAt", () => {
  it.each([
    ["constant by default", {}, [1, 1, 1, 1]],
    ["warm-up rises to the peak", { warmupSteps: 3 }, [0.25, 0.5, 0.75, 1]],
    ["linear decay over all steps", { decay: "linear" }, [0.8, 0.6, 0.4, 0.2]],
    ["stable, then linear decay", { decay: "linear", decaySteps: 2 }, [1, 1, 2 / 3, 1 / 3]],
    ["cosine decay", { decay: "cosine", decaySteps: 1 }, [1, 1, 1, 0.5]],
    ["a floor", { decay: "linear", decaySteps: 1, minRatio: 0.5 }, [1, 1, 1, 0.75]],
    ["warm-up, then decay", { warmupSteps: 1, decay: "linear" }, [0.5, 0.75, 0.5, 0.25]],
  ] as const)("%s", (_, schedule, expected) => {
    for (const [i, rate] of rates(schedule, 4).entries()) {
      expect(rate).toBeCloseTo(expected[i] as number, 12);
    }
  });

  it("rises, then falls, and lies within (0, peak], whatever the numbers", () => {
    const anySchedule = fc.record({
      warmupSteps: fc.nat(30),
      decay: fc.constantFrom("none" as const, "linear" as const, "cosine" as const),
      decaySteps: fc.option(fc.integer({ min: 1, max: 60 }), { nil: undefined }),
      minRatio: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(anySchedule, fc.integer({ min: 1, max: 40 }), (schedule, steps) => {
        const all = rates(schedule, steps);
        const top = all.indexOf(Math.max(...all));
        for (const [i, rate] of all.entries()) {
          expect(rate).toBeGreaterThan(0);
          expect(rate).toBeLessThanOrEqual(1);
          const next = all[i + 1];
          if (next !== undefined && i < top) expect(next).toBeGreaterThanOrEqual(rate);
          if (next !== undefined && i > top) expect(next).toBeLessThanOrEqual(rate + 1e-12);
        }
      }),
    );
  });
});
