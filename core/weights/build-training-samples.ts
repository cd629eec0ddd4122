import type { CreditSettings, RewardEvent } from "../advantages/rollout-values.ts";
import {
  type AdvantageSettings,
  type CreditedRollout,
  type RolloutAdvantages,
  stepAdvantages,
} from "../advantages/step-advantages.ts";
import {
  type VerlRow,
  type VerlSettings,
  verlRowAdvantages,
} from "../advantages/verl-row-advantages.ts";
import { isZeroSignal } from "../advantages/zero-signal.ts";
import type { AssembledSample, TrainedSpan } from "../assembly/assembled-sample.ts";
import type { TrainingSample } from "../sample.ts";
import { tokenWeights } from "./token-weights.ts";
import type { Weighting } from "./weighting.ts";

export interface TrainingRollout {
  readonly rolloutId: string;
  /** Final reward; undefined where missing, which masks the rollout and is never a zero. */
  readonly reward?: number | undefined;
  readonly rewardEvents?: readonly RewardEvent[];
  /** Its tokens are trained. Default true. */
  readonly isTrainable?: boolean;
  /** Its reward counts in the group's statistics. Default true. */
  readonly isInBaseline?: boolean;
  /** The rows of its accepted attempt. */
  readonly samples: readonly AssembledSample[];
  /** States by call id that an adapter gives, for GiGPO. */
  readonly anchors?: ReadonlyMap<string, string>;
}

export interface TrainingGroup {
  readonly groupId: string;
  readonly rollouts: readonly TrainingRollout[];
}

export interface TrainingSettings {
  readonly advantages: AdvantageSettings | VerlSettings;
  /** Default per-rollout mean. */
  readonly weighting?: Weighting;
  /** Leave groups out whose rewards are all equal. Default false. */
  readonly dropsZeroSignalGroups?: boolean;
}

export interface TrainingStep {
  readonly samples: readonly TrainingSample[];
  readonly groups: number;
  readonly zeroSignalGroups: number;
  readonly droppedGroups: number;
  /** R: rollouts with at least one trained token. */
  readonly trainedRollouts: number;
  readonly missingRewards: number;
  /** Rollouts kept out of training by the caller. */
  readonly maskedRollouts: number;
  readonly trainedTokens: number;
}

/**
 * Joins the rows of one optimizer step with their advantages and loss weights. Everything that is
 * counted over the step (baselines, R) is counted here, once: call it with all groups of the step,
 * and split the result into micro-batches as you like.
 */
export function buildTrainingSamples(
  groups: readonly TrainingGroup[],
  settings: TrainingSettings,
): TrainingStep {
  const credited = groups.map((group) => group.rollouts.map(buildCredited));
  const credit = creditOf(settings.advantages);
  const isZero = credited.map((group) => isZeroSignal(group, credit));
  const kept = groups.map((_, g) => !(settings.dropsZeroSignalGroups && isZero[g]));
  const rows = buildRows(
    groups.filter((_, g) => kept[g]),
    credited.filter((_, g) => kept[g]),
    settings.advantages,
  );
  const weights = tokenWeights(
    rows.map((row) => row.sample),
    settings.weighting ?? { kind: "rollout-mean" },
  );
  const samples = rows.map((row, i) => buildSample(row, weights[i] as Float32Array));
  const rollouts = groups.flatMap((group) => group.rollouts);
  return {
    samples,
    groups: groups.length,
    zeroSignalGroups: isZero.filter(Boolean).length,
    droppedGroups: kept.filter((one) => !one).length,
    trainedRollouts: new Set(samples.map((sample) => sample.rolloutId)).size,
    missingRewards: credited.flat().filter((rollout) => !hasReward(rollout)).length,
    maskedRollouts: rollouts.filter((rollout) => rollout.isTrainable === false).length,
    trainedTokens: rows.reduce((sum, row) => sum + countTrained(row.sample), 0),
  };
}

interface TrainingRow {
  readonly groupId: string;
  readonly sample: AssembledSample;
  readonly advantages: Float32Array;
}

function buildRows(
  groups: readonly TrainingGroup[],
  credited: readonly (readonly CreditedRollout[])[],
  settings: AdvantageSettings | VerlSettings,
): TrainingRow[] {
  if (isVerl(settings)) return buildVerlRows(groups, settings);
  const byGroup = stepAdvantages(credited, settings);
  return groups.flatMap((group, g) =>
    group.rollouts.flatMap((rollout, r) => {
      const advantages = byGroup[g]?.[r];
      if (rollout.isTrainable === false || advantages === undefined) return [];
      const places = placeTurns(rollout);
      return rollout.samples.map((sample) => ({
        groupId: group.groupId,
        sample,
        advantages: broadcast(sample, advantages, places),
      }));
    }),
  );
}

/** Each trained token gets the advantage of its turn. */
function broadcast(
  sample: AssembledSample,
  advantages: NonNullable<RolloutAdvantages>,
  places: ReadonlyMap<number, number>,
): Float32Array {
  const tokens = new Float32Array(sample.tokenIds.length);
  for (const span of sample.spans) {
    const place = advantages.length === 1 ? 0 : (places.get(span.turnIndex) as number);
    tokens.fill(advantages[place] as number, span.start, span.end);
  }
  return tokens;
}

function buildVerlRows(groups: readonly TrainingGroup[], settings: VerlSettings): TrainingRow[] {
  const rows: (Omit<TrainingRow, "advantages"> & { readonly row: VerlRow })[] = [];
  for (const { groupId, rollouts } of groups) {
    for (const { reward, isTrainable, samples } of rollouts) {
      if (reward === undefined || isTrainable === false) continue;
      for (const sample of samples) {
        const tokenRewards = new Float64Array(sample.lossMask.length);
        tokenRewards[sample.lossMask.lastIndexOf(1)] = reward;
        rows.push({ groupId, sample, row: { groupId, tokenRewards, mask: sample.lossMask } });
      }
    }
  }
  const advantages = verlRowAdvantages(
    rows.map(({ row }) => row),
    settings,
  );
  return rows.map(({ groupId, sample }, i) => ({
    groupId,
    sample,
    advantages: Float32Array.from(advantages[i] as Float64Array),
  }));
}

function buildSample(
  { groupId, sample, advantages }: TrainingRow,
  weights: Float32Array,
): TrainingSample {
  const { spans, ...row } = sample;
  const starts = spans.filter((span, i) => spans[i - 1]?.end === span.start);
  return {
    ...row,
    groupId,
    advantages,
    weights,
    ...(starts.length > 0 && { responseStarts: Int32Array.from(starts, (span) => span.start) }),
  };
}

function buildCredited(rollout: TrainingRollout): CreditedRollout {
  const spans = spansInTime(rollout);
  return {
    reward: rollout.reward,
    events: rollout.rewardEvents ?? [],
    isInBaseline: rollout.isInBaseline ?? true,
    turnStartsMs: spans.map((span) => span.call.startedAt),
    anchors: spans.map((span) => anchorOf(rollout, span)),
  };
}

/** One span per trained call, in order of time, however its response is spread over rows. */
function spansInTime(rollout: TrainingRollout): TrainedSpan[] {
  const byTurn = new Map<number, TrainedSpan>();
  for (const { spans } of rollout.samples) {
    for (const span of spans) byTurn.set(span.turnIndex, span);
  }
  return [...byTurn.values()].sort((a, b) => a.turnIndex - b.turnIndex);
}

function placeTurns(rollout: TrainingRollout): ReadonlyMap<number, number> {
  return new Map(spansInTime(rollout).map((span, place) => [span.turnIndex, place]));
}

/** The adapter's state, else what is new in the prompt since the parent's response. */
function anchorOf(rollout: TrainingRollout, { call, observationStart }: TrainedSpan): string {
  const given = rollout.anchors?.get(call.callId);
  if (given !== undefined) return `state:${given}`;
  return `ids:${call.promptIds?.subarray(observationStart).join()}`;
}

function hasReward({ reward, events }: CreditedRollout): boolean {
  return reward !== undefined || (events !== undefined && events.length > 0);
}

function countTrained(sample: AssembledSample): number {
  return sample.spans.reduce((sum, span) => sum + span.end - span.start, 0);
}

function isVerl(settings: AdvantageSettings | VerlSettings): settings is VerlSettings {
  return settings.estimator.startsWith("verl-");
}

function creditOf(settings: AdvantageSettings | VerlSettings): CreditSettings {
  if (isVerl(settings)) return { kind: "outcome" };
  if (settings.estimator === "gigpo") return { kind: "per-turn", discount: settings.discount ?? 1 };
  return settings.credit ?? { kind: "outcome" };
}
