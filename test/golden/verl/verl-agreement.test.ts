import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { groupAdvantages } from "../../../core/advantages/group-advantages.ts";
import { expectAgreement, tolerance, type VerlVectors } from "./compare-with-verl.ts";
import recorded from "./vectors.json" with { type: "json" };

const vectors: VerlVectors = recorded;
/** The interpreter to look for verl in. */
const python = process.env.VERL_PYTHON ?? "python3";
const probe =
  "import importlib.util as u, sys; sys.exit(0 if u.find_spec('verl') and u.find_spec('torch') else 3)";
const hasVerl = spawnSync(python, ["-c", probe], { timeout: 20_000 }).status === 0;

describe("agreement with verl.trainer.ppo.core_algos", () => {
  it(`on recorded vectors (${vectors.source})`, () => {
    expect(vectors.batches.length).toBeGreaterThan(20);
    expect(vectors.policyLosses.length).toBeGreaterThan(20);
    expectAgreement(vectors);
  });

  it("per rollout, our grpo, dr-grpo and rloo are verl's where a group has two or more", () => {
    const names = [
      ["grpo", "verl-grpo"],
      ["dr-grpo", "verl-grpo-no-std"],
      ["rloo", "verl-rloo"],
    ] as const;
    let compared = 0;
    for (const batch of vectors.batches) {
      for (const groupId of new Set(batch.groups)) {
        const rows = batch.groups.flatMap((id, i) => (id === groupId ? [i] : []));
        if (rows.length < 2) continue;
        const rewards = rows.map((i) => [batch.tokenRewards[i]?.reduce((a, b) => a + b) as number]);
        for (const [estimator, verlName] of names) {
          const ours = groupAdvantages(rewards, { estimator });
          rows.forEach((i, place) => {
            const token = batch.mask[i]?.indexOf(1) as number;
            const theirs = batch.advantages[verlName]?.[i]?.[token] as number;
            expect(Math.abs((ours[place]?.[0] as number) - theirs)).toBeLessThan(tolerance);
            compared++;
          });
        }
      }
    }
    expect(compared).toBeGreaterThan(100);
  });

  it.skipIf(!hasVerl)(
    `live, on fresh batches${hasVerl ? "" : ` (skipped: ${python} has no verl and torch; set VERL_PYTHON)`}`,
    { timeout: 240_000 },
    () => {
      const script = join(import.meta.dirname, "make_vectors.py");
      const seed = String(Date.now() % 2 ** 31);
      const { status, stdout, stderr } = spawnSync(
        python,
        [script, "--seed", seed, "--batches", "200"],
        {
          encoding: "utf8",
          maxBuffer: 2 ** 28,
        },
      );
      expect(status, stderr).toBe(0);
      const live = JSON.parse(stdout.slice(stdout.indexOf('{"source"'))) as VerlVectors;
      expect(live.batches.length, `seed ${seed}`).toBeGreaterThan(150);
      expectAgreement(live);
    },
  );
});
