import { beforeEach, expect, it } from "vitest";
import { createPolicyKeeper, type PolicyKeeper } from "./policy-keeper.ts";

/** A backend as the port describes it, with two versions of memory and a switch to die by. */
function openParts() {
  const facts = new Map<string, string>();
  const saved = new Map<string, number>();
  const state = { version: 0, weights: 0, diesAfterRollback: false };
  const keeper = (): PolicyKeeper =>
    createPolicyKeeper({
      now: () => 7,
      steps: {
        fact: async <T>(name: string) => {
          const text = facts.get(name);
          return text === undefined ? undefined : (JSON.parse(text) as T);
        },
        setFact: async (name, value) => void facts.set(name, JSON.stringify(value)),
      },
      backend: {
        checkpoint: async (name) => {
          saved.set(name, state.weights);
          return { location: `/saved/${name}`, version: state.version };
        },
        rollBack: async (name, toVersion) => {
          if (state.version !== toVersion) {
            state.version = toVersion;
            state.weights = saved.get(name) as number;
          }
          if (state.diesAfterRollback) throw new Error("died");
          return { version: toVersion };
        },
      },
    });
  return { state, keeper };
}

let parts: ReturnType<typeof openParts>;
beforeEach(() => {
  parts = openParts();
});

it("goes back to a checkpoint as the next version, and remembers both", async () => {
  const keeper = parts.keeper();
  parts.state.version = 3;
  parts.state.weights = 30;
  await keeper.checkpoint(3);
  parts.state.version = 5;
  parts.state.weights = 50;
  expect(await keeper.rollBack("step-3", 5, 5)).toBe(6);
  expect(parts.state).toMatchObject({ version: 6, weights: 30 });
  expect(await keeper.history()).toEqual({
    checkpoints: [{ name: "step-3", version: 3, step: 3, location: "/saved/step-3", atMs: 7 }],
    rollbacks: [{ checkpoint: "step-3", fromVersion: 5, version: 6, step: 5, atMs: 7 }],
  });
  expect(await keeper.finishRollback()).toBeUndefined();
});

it("finishes a rollback that a kill cut short, once", async () => {
  await parts.keeper().checkpoint(1);
  parts.state.version = 2;
  parts.state.diesAfterRollback = true;
  await expect(parts.keeper().rollBack("step-1", 2, 2)).rejects.toThrow("died");
  parts.state.diesAfterRollback = false;
  expect(await parts.keeper().finishRollback()).toBe(3);
  expect(await parts.keeper().finishRollback()).toBeUndefined();
  expect((await parts.keeper().history()).rollbacks).toHaveLength(1);
});

it("refuses a checkpoint that the run has not made, and names those that it has", async () => {
  await parts.keeper().checkpoint(4);
  await expect(parts.keeper().rollBack("best", 9, 9)).rejects.toMatchObject({
    reason: "checkpoint-unknown",
    hint: expect.stringContaining("step-4") as string,
  });
  expect(await parts.keeper().finishRollback()).toBeUndefined();
});
