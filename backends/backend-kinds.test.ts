import { expect, it } from "vitest";
import { capabilityProblems } from "./backend-kinds.ts";

const wanted = {
  loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 },
  correction: { kind: "none" },
  klCoefficient: 0,
  temperature: 1,
} as const;

it("finds nothing against what a backend can do", () => {
  expect(capabilityProblems("native", wanted)).toEqual([]);
  expect(capabilityProblems("tinker", wanted)).toEqual([]);
  const much = {
    loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2, dualClip: 3 },
    correction: { kind: "truncate", level: "token", max: 2 },
    klCoefficient: 0.1,
    temperature: 0.7,
  } as const;
  expect(capabilityProblems("native", much)).toEqual([]);
});

it("lists every problem at once, with the field and what there is instead", () => {
  const problems = capabilityProblems("tinker", {
    loss: { kind: "gspo", clipLow: 0.9, clipHigh: 1.1 },
    correction: { kind: "mask", level: "token", min: 0.5, max: 2 },
    klCoefficient: 0.1,
    temperature: 0.7,
  });
  expect(problems.map((p) => p.split(":")[0])).toEqual([
    "algorithm.loss.kind gspo",
    "algorithm.correction.kind mask",
    "algorithm.klCoefficient 0.1",
    "sampling.train.temperature 0.7",
  ]);
  expect(problems[0]).toContain("it has importance-sampling, ppo, cispo");
});
