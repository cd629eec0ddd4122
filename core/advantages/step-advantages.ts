import { type BatchEstimator, batchAdvantages, type GroupValues } from "./batch-advantages.ts";
import { gigpoAdvantages } from "./gigpo-advantages.ts";
import { type GroupAdvantageSettings, groupAdvantages } from "./group-advantages.ts";
import { type CreditSettings, type RolloutRewards, rolloutValues } from "./rollout-values.ts";

/** The estimators that work per rollout; rows play no part in them. */
export type AdvantageSettings =
  | (GroupAdvantageSettings & {
      /** Default `outcome`. */
      readonly credit?: CreditSettings;
    })
  | { readonly estimator: BatchEstimator; readonly credit?: CreditSettings }
  | {
      readonly estimator: "gigpo";
      /** Discount of the step returns. Default 1. */
      readonly discount?: number;
      /** Default 1. */
      readonly stepWeight?: number;
      /** Divide by std. Default true. */
      readonly normalises?: boolean;
      readonly epsilon?: number;
    };

/** What credit needs to know of one rollout. */
export interface CreditedRollout extends RolloutRewards {
  /** Counted in its group's statistics. A rollout without a reward never is. */
  readonly isInBaseline: boolean;
  /** When each trained turn began, in order of time. */
  readonly turnStartsMs: readonly number[];
  /** The state that each turn acted in, for GiGPO. */
  readonly anchors: readonly string[];
}

/** Advantage of each turn in order of time; a single number is for all turns; undefined: no reward. */
export type RolloutAdvantages = readonly number[] | undefined;

/** Advantages of a whole step, by group and rollout. Groups must be complete. */
export function stepAdvantages(
  groups: readonly (readonly CreditedRollout[])[],
  settings: AdvantageSettings,
): RolloutAdvantages[][] {
  if (settings.estimator === "gigpo") return groups.map((group) => gigpo(group, settings));
  const credit = settings.credit ?? { kind: "outcome" };
  const values = groups.map((group) => buildGroupValues(group, credit));
  const byGroup = compareValues(values, settings);
  return groups.map((group, g) =>
    spread(values[g] as RewardedValues, byGroup[g] ?? [], group.length),
  );
}

function compareValues(
  values: readonly GroupValues[],
  settings: Exclude<AdvantageSettings, { estimator: "gigpo" }>,
): number[][][] {
  switch (settings.estimator) {
    case "reinforce-plus-plus":
    case "reinforce-plus-plus-baseline":
    case "trl-grpo-batch-std":
      return batchAdvantages(values, settings.estimator);
    case "grpo":
    case "trl-grpo":
    case "dr-grpo":
    case "rloo":
      return values.map(({ rollouts, baseline }) => groupAdvantages(rollouts, settings, baseline));
  }
}

interface RewardedValues extends GroupValues {
  /** Places in the group of the rollouts that have a reward. */
  readonly places: readonly number[];
}

function buildGroupValues(
  group: readonly CreditedRollout[],
  credit: CreditSettings,
): RewardedValues {
  const rollouts: (readonly number[])[] = [];
  const baseline: (readonly number[])[] = [];
  const places: number[] = [];
  group.forEach((rollout, place) => {
    const values = rolloutValues(rollout, rollout.turnStartsMs, credit);
    if (values === undefined) return;
    places.push(place);
    rollouts.push(values);
    if (rollout.isInBaseline) baseline.push(values);
  });
  return { rollouts, baseline, places };
}

/** Puts the advantages of the rewarded rollouts back into the places of the whole group. */
function spread(
  { places }: RewardedValues,
  advantages: readonly (readonly number[])[],
  size: number,
): RolloutAdvantages[] {
  const all = Array.from<RolloutAdvantages>({ length: size });
  places.forEach((place, i) => {
    all[place] = advantages[i];
  });
  return all;
}

function gigpo(
  group: readonly CreditedRollout[],
  settings: Extract<AdvantageSettings, { estimator: "gigpo" }>,
): RolloutAdvantages[] {
  const { discount = 1, stepWeight = 1, normalises = true, epsilon = 1e-6 } = settings;
  const values = buildGroupValues(group, { kind: "per-turn", discount });
  const rollouts = values.places.map((place, i) => {
    const rollout = group[place] as CreditedRollout;
    const returns = values.rollouts[i] as readonly number[];
    return {
      episodeReward: sumRewards(rollout),
      returns,
      anchors: returns.map((_, turn) => rollout.anchors[turn] ?? ""),
      isInBaseline: rollout.isInBaseline,
    };
  });
  const advantages = gigpoAdvantages(rollouts, { stepWeight, normalises, epsilon });
  return spread(values, advantages, group.length);
}

function sumRewards({ reward, events = [] }: RolloutRewards): number {
  return events.reduce((sum, event) => sum + event.value, reward ?? 0);
}
