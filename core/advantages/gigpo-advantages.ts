import { groupAdvantages } from "./group-advantages.ts";

/** One rollout of a group as GiGPO sees it. */
export interface GigpoRollout {
  /** Sum of all rewards. */
  readonly episodeReward: number;
  /** Discounted return of each turn, in order of time. */
  readonly returns: readonly number[];
  /** The state that each turn acted in; equal strings are one state. Same length as `returns`. */
  readonly anchors: readonly string[];
  readonly isInBaseline: boolean;
}

export interface GigpoSettings {
  /** Weight of the step-level part. */
  readonly stepWeight: number;
  /** Divide both levels by their std (the paper's F_norm = std), or leave them (F_norm = 1). */
  readonly normalises: boolean;
  readonly epsilon?: number;
}

/**
 * Group-in-group advantages (arXiv 2505.10978), one per turn of each rollout: the episode compared
 * with the group's episodes, plus `stepWeight` times the turn's return compared with all turns of
 * the group that acted in the same state. A state met once gives 0.
 */
export function gigpoAdvantages(
  group: readonly GigpoRollout[],
  settings: GigpoSettings,
): number[][] {
  const { epsilon = 1e-6 } = settings;
  const estimator = settings.normalises ? "grpo" : "dr-grpo";
  const episodes = group.map((rollout) => [rollout.episodeReward]);
  const counted = episodes.filter((_, index) => group[index]?.isInBaseline);
  const episode = groupAdvantages(episodes, { estimator, epsilon }, counted);
  const steps = stepAdvantages(group, estimator, epsilon);
  return group.map((rollout, i) =>
    rollout.returns.map((_, turn) => {
      const step = steps[i]?.[turn] ?? 0;
      return (episode[i]?.[0] ?? 0) + settings.stepWeight * step;
    }),
  );
}

function stepAdvantages(
  group: readonly GigpoRollout[],
  estimator: "grpo" | "dr-grpo",
  epsilon: number,
): number[][] {
  const byAnchor = new Map<string, { readonly rollout: number; readonly turn: number }[]>();
  group.forEach(({ anchors }, rollout) => {
    anchors.forEach((anchor, turn) => {
      const known = byAnchor.get(anchor);
      if (known === undefined) byAnchor.set(anchor, [{ rollout, turn }]);
      else known.push({ rollout, turn });
    });
  });
  const steps = group.map((rollout) => rollout.returns.map(() => 0));
  for (const places of byAnchor.values()) {
    const values = places.map(({ rollout, turn }) => [group[rollout]?.returns[turn] as number]);
    const counted = values.filter((_, i) => group[places[i]?.rollout as number]?.isInBaseline);
    groupAdvantages(values, { estimator, epsilon }, counted).forEach(([advantage], i) => {
      const { rollout, turn } = places[i] as { rollout: number; turn: number };
      (steps[rollout] as number[])[turn] = advantage as number;
    });
  }
  return steps;
}
