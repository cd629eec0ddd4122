import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { chooseEngine, type EngineLoad } from "./choose-engine.ts";

const none: ReadonlySet<string> = new Set();
const engine = (url: string, inFlight = 0, isHealthy = true): EngineLoad => ({
  url,
  inFlight,
  isHealthy,
});

describe("choice of an engine", () => {
  it("is the same for a rollout as long as there is room", () => {
    const engines = ["a", "b", "c"].map((url) => engine(url));
    const first = chooseEngine(engines, "r1", none);
    for (let turn = 0; turn < 5; turn += 1) expect(chooseEngine(engines, "r1", none)).toBe(first);
  });

  it("spreads rollouts", () => {
    const engines = ["a", "b", "c", "d"].map((url) => engine(url));
    const counts = new Map<string, number>();
    for (let index = 0; index < 4_000; index += 1) {
      const url = chooseEngine(engines, `rollout-${index}`, none)?.url ?? "";
      counts.set(url, (counts.get(url) ?? 0) + 1);
    }
    for (const url of ["a", "b", "c", "d"]) expect(counts.get(url)).toBeGreaterThan(800);
  });

  it("moves only the rollouts of an engine that left", () => {
    const all = ["a", "b", "c", "d"].map((url) => engine(url));
    const left = all.filter(({ url }) => url !== "c");
    for (let index = 0; index < 500; index += 1) {
      const before = chooseEngine(all, `r${index}`, none)?.url;
      const after = chooseEngine(left, `r${index}`, none)?.url;
      if (before !== "c") expect(after).toBe(before);
    }
  });

  it("never exceeds the bound on load", () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 50 }), { minLength: 2, maxLength: 8 }), (loads) => {
        const engines = loads.map((load, index) => engine(`e${index}`, load));
        const total = loads.reduce((sum, load) => sum + load, 0);
        const bound = Math.ceil((1.25 * (total + 1)) / engines.length);
        const chosen = chooseEngine(engines, "r", none);
        expect((chosen?.inFlight ?? 0) + 1).toBeLessThanOrEqual(bound);
      }),
    );
  });

  it("prefers healthy ones, takes an unhealthy one when there is no other", () => {
    const sick = engine("a", 0, false);
    const well = engine("b");
    for (let index = 0; index < 20; index += 1)
      expect(chooseEngine([sick, well], `r${index}`, none)).toBe(well);
    expect(chooseEngine([sick, well], "r", new Set(["b"]))).toBe(sick);
    expect(chooseEngine([sick, well], "r", new Set(["a", "b"]))).toBeUndefined();
    expect(chooseEngine([sick], "r", none)).toBe(sick);
    expect(chooseEngine([], "r", none)).toBeUndefined();
  });
});
