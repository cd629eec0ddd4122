import { expect, it } from "vitest";
import { type BackendKind, backendKinds, capabilityProblems } from "./backend-kinds.ts";

const wanted = {
  loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2 },
  correction: { kind: "none" },
  klCoefficient: 0,
  temperature: 1,
} as const;

const much = {
  loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2, dualClip: 3 },
  correction: { kind: "truncate", level: "token", max: 2 },
  klCoefficient: 0.1,
  temperature: 0.7,
} as const;

it("finds nothing against what a backend can do", () => {
  const { native, tinker } = backendKinds;
  expect(capabilityProblems("native", native, wanted)).toEqual([]);
  expect(capabilityProblems("tinker", tinker, wanted)).toEqual([]);
  expect(capabilityProblems("native", native, much)).toEqual([]);
  expect(capabilityProblems("tinker", tinker, { ...much, temperature: 1 })).toEqual([]);
});

it("lists every problem at once, with the field and what there is instead", () => {
  const little: BackendKind = {
    summary: "",
    losses: ["importance-sampling", "ppo"],
    corrections: ["none"],
    supportsKl: false,
    supportsRestore: true,
    supportsDualClip: false,
    supportsTemperature: false,
  };
  const gspo = { kind: "gspo", clipLow: 0.9, clipHigh: 1.1 } as const;
  const problems = capabilityProblems("little", little, { ...much, loss: gspo });
  expect(problems.map((p) => p.split(":")[0])).toEqual([
    "algorithm.loss.kind gspo",
    "algorithm.correction.kind truncate",
    "algorithm.klCoefficient 0.1",
    "sampling.train.temperature 0.7",
  ]);
  expect(problems[0]).toContain("the little backend cannot do it; it has importance-sampling, ppo");
  expect(capabilityProblems("little", little, { ...wanted, loss: much.loss })).toEqual([
    "algorithm.loss.dualClip: the little backend cannot do it; leave it out",
  ]);
});
