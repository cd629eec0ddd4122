import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AdvantageSettings } from "../../core/advantages/step-advantages.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import type { Weighting } from "../../core/weights/weighting.ts";
import { openPlantedPolicy, type PlantedBug, type PlantedPolicy } from "./planted-signal.ts";

const estimators: readonly AdvantageSettings["estimator"][] = [
  "grpo",
  "dr-grpo",
  "rloo",
  "reinforce-plus-plus",
  "reinforce-plus-plus-baseline",
  "gigpo",
];
const weightings: readonly Weighting[] = [
  { kind: "rollout-mean" },
  { kind: "token-mean" },
  { kind: "call-mean" },
  { kind: "constant-norm", normTokens: 8 },
];
const bugs: readonly PlantedBug[] = ["sign-flipped", "wrong-group", "leaked-baseline"];

let policy: PlantedPolicy;
beforeAll(async () => {
  policy = await openPlantedPolicy();
});
afterAll(() => policy.close());

/** How much the share of rewarded tokens grew in a few steps, from about a half. */
async function improvement(
  estimator: AdvantageSettings["estimator"],
  weighting: Weighting,
  more: { readonly bug?: PlantedBug; readonly settings?: Partial<UpdateSettings> } = {},
): Promise<number> {
  const shares = await policy.train({
    estimator: { estimator },
    weighting,
    steps: 14,
    seed: 2,
    ...more,
  });
  const [first, last] = [shares.slice(0, 2), shares.slice(-2)].map(
    (two) => (two[0]! + two[1]!) / 2,
  );
  return last! - first!;
}

/** The check that the honest step passes and every planted bug fails. */
const learns = (gain: number): boolean => gain > 0.15;

describe.each(estimators)("a planted reward under %s", (estimator) => {
  it.each(weightings)("improves the policy with $kind", async (weighting) => {
    const gain = await improvement(estimator, weighting);
    expect(learns(gain), `gained ${gain.toFixed(3)}`).toBe(true);
  });

  // Statistics over the whole batch know no groups, so these cannot be wrong.
  const possible = bugs.filter(
    (bug) => !(bug === "wrong-group" && estimator === "reinforce-plus-plus"),
  );
  it.each(possible)("does not with the planted bug %s", async (bug) => {
    const gain = await improvement(estimator, { kind: "rollout-mean" }, { bug });
    expect(learns(gain), `gained ${gain.toFixed(3)}`).toBe(false);
  });
});

describe("a planted reward under another loss", () => {
  it.each<[string, Partial<UpdateSettings>]>([
    ["dual-clipped ppo", { loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.2, dualClip: 3 } }],
    ["gspo", { loss: { kind: "gspo", clipLow: 0.9, clipHigh: 1.1 } }],
    ["cispo", { loss: { kind: "cispo", clipLow: 0, clipHigh: 4 } }],
    [
      "importance sampling, truncated",
      {
        loss: { kind: "importance-sampling" },
        correction: { kind: "truncate", level: "token", max: 2 },
      },
    ],
  ])("improves the policy with %s", async (_what, settings) => {
    const gain = await improvement("grpo", { kind: "rollout-mean" }, { settings });
    expect(learns(gain), `gained ${gain.toFixed(3)}`).toBe(true);
  });
});
