import type { Workload, WorkloadRollout } from "./workload.ts";

/** How long rollouts take alone, in ms; `medianMs` is the median before the cap. */
export type DurationDistribution =
  | { readonly kind: "lognormal"; readonly medianMs: number; readonly sigma: number }
  | { readonly kind: "pareto"; readonly medianMs: number; readonly alpha: number };

export interface WorkloadRecipe {
  readonly name: string;
  readonly seed: number;
  readonly slots: number;
  readonly steps: number;
  /** Groups beyond steps · groupsPerStep, for schedules that drop. */
  readonly spareGroupCount: number;
  readonly groupsPerStep: number;
  readonly groupSize: number;
  readonly duration: DurationDistribution;
  readonly capMs: number;
  /** Call and tool together, on average. */
  readonly turnMs: number;
  /** Part of a turn that is tool time, 0 to 1. */
  readonly toolShare: number;
  readonly stepMs: number;
  readonly publishMs: number;
}

/** Uniform numbers in (0, 1) from a 32-bit seed: splitmix32 (Steele, Lea and Flood, 2014). */
export function createUniform(seed: number): () => number {
  let counter = seed >>> 0;
  return () => {
    counter = (counter + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(counter ^ (counter >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return (((mixed ^ (mixed >>> 15)) >>> 0) + 0.5) / 2 ** 32;
  };
}

/** The same recipe gives the same workload, on every machine. */
export function generateWorkload(recipe: WorkloadRecipe): Workload {
  const uniform = createUniform(recipe.seed);
  const groupCount = recipe.steps * recipe.groupsPerStep + recipe.spareGroupCount;
  const groups = Array.from({ length: groupCount }, (_, g) => ({
    groupId: `g${g}`,
    rollouts: Array.from({ length: recipe.groupSize }, (_unused, r) =>
      buildRollout(`g${g}-r${r}`, recipe, uniform),
    ),
  }));
  return {
    format: "rl-schedule-workload/1",
    name: recipe.name,
    engine: { slots: recipe.slots },
    trainer: { stepMs: recipe.stepMs, publishMs: recipe.publishMs },
    batch: { groupsPerStep: recipe.groupsPerStep, groupSize: recipe.groupSize },
    steps: recipe.steps,
    groups,
  };
}

function buildRollout(
  rolloutId: string,
  recipe: WorkloadRecipe,
  uniform: () => number,
): WorkloadRollout {
  const totalMs = Math.min(recipe.capMs, drawDuration(recipe.duration, uniform));
  const turnCount = Math.max(1, Math.round(totalMs / recipe.turnMs));
  // Turns vary by half around their mean; together they are the rollout's length.
  const parts = Array.from({ length: turnCount }, () => 0.5 + uniform());
  const scale = totalMs / parts.reduce((sum, part) => sum + part, 0);
  const turns = parts.map((part) => {
    const toolMs = Math.round(part * scale * recipe.toolShare);
    return { callMs: Math.max(1, Math.round(part * scale) - toolMs), toolMs };
  });
  return { rolloutId, turns };
}

function drawDuration(duration: DurationDistribution, uniform: () => number): number {
  if (duration.kind === "pareto") {
    // Median = minimum · 2^(1/alpha).
    const minimumMs = duration.medianMs / 2 ** (1 / duration.alpha);
    return minimumMs / uniform() ** (1 / duration.alpha);
  }
  const normal = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  return duration.medianMs * Math.exp(duration.sigma * normal);
}
