import { describe, expect, it } from "vitest";
import { generateWorkload, type WorkloadRecipe } from "./generate-workload.ts";
import { parseWorkload } from "./workload.ts";

const recipe: WorkloadRecipe = {
  name: "w",
  seed: 3,
  slots: 4,
  steps: 50,
  spareGroupCount: 2,
  groupsPerStep: 4,
  groupSize: 8,
  duration: { kind: "lognormal", medianMs: 30_000, sigma: 1.2 },
  capMs: 300_000,
  turnMs: 3_000,
  toolShare: 0.2,
  stepMs: 20_000,
  publishMs: 1_000,
};
const lengths = (of: WorkloadRecipe) =>
  generateWorkload(of)
    .groups.flatMap((group) => group.rollouts)
    .map(({ turns }) => turns.reduce((sum, turn) => sum + turn.callMs + turn.toolMs, 0))
    .toSorted((a, b) => a - b);

describe("generateWorkload", () => {
  it("is a function of its seed, and valid", () => {
    const workload = generateWorkload(recipe);
    const text = JSON.stringify(workload);
    expect(JSON.stringify(generateWorkload(recipe)) === text).toBe(true);
    expect(JSON.stringify(generateWorkload({ ...recipe, seed: 4 })) === text).toBe(false);
    expect(JSON.stringify(parseWorkload(JSON.parse(text))) === text).toBe(true);
    expect(workload.groups.length).toBe(202);
  });

  it.each([
    // P(length > 300 s): lognormal 1 - Phi(ln(10) / 1.2) = 0.0275, Pareto (17.6 / 300)^1.3 = 0.0251.
    [recipe.duration, 0.0275],
    [{ kind: "pareto", medianMs: 30_000, alpha: 1.3 } as const, 0.0251],
  ])("has the asked-for median and tail: %j", (duration, tailShare) => {
    const sorted = lengths({ ...recipe, duration });
    expect(sorted[sorted.length >> 1]).toBeGreaterThan(27_000);
    expect(sorted[sorted.length >> 1]).toBeLessThan(33_000);
    const capped = sorted.filter((ms) => ms > 299_000).length / sorted.length;
    expect(Math.abs(capped - tailShare)).toBeLessThan(0.012);
    expect(sorted.at(-1)).toBeLessThan(301_000);
  });

  it("spends the asked-for share of time in tools", () => {
    const turns = generateWorkload(recipe).groups.flatMap((g) =>
      g.rollouts.flatMap((r) => r.turns),
    );
    const toolMs = turns.reduce((sum, turn) => sum + turn.toolMs, 0);
    const callMs = turns.reduce((sum, turn) => sum + turn.callMs, 0);
    expect(toolMs / (toolMs + callMs)).toBeCloseTo(0.2, 3);
  });
});

describe("parseWorkload", () => {
  const valid = generateWorkload({ ...recipe, steps: 1, spareGroupCount: 0 });
  const [first, ...rest] = valid.groups;
  it.each([
    ["another format", { ...valid, format: "x" }, "format"],
    ["an unknown key", { ...valid, slots: 3 }, "slots"],
    ["no slots", { ...valid, engine: { slots: 0 } }, "engine.slots"],
    ["a negative time", { ...valid, trainer: { stepMs: -1, publishMs: 0 } }, "trainer.stepMs"],
    ["a repeated id", { ...valid, groups: [first, first, ...rest] }, "occurs twice"],
    [
      "a group of another size",
      { ...valid, groups: [{ groupId: "x", rollouts: first?.rollouts.slice(1) }] },
      "groups[0] has 7 rollouts, batch.groupSize is 8",
    ],
    ["no groups", { ...valid, groups: [] }, "groups"],
    ["nothing", null, "expected object"],
  ])("refuses %s and says where", (_name, value, message) => {
    expect(() => parseWorkload(value)).toThrow(message);
  });
});
