import type { AttemptEndReason } from "./attempt-end-reason.ts";

/**
 * Where an ended attempt's reward comes from. `graded` takes what the grader said; when it said
 * nothing the reward is missing, never zero, unless `whenMissing` says what to use instead.
 * `fixed` ignores the grader. `none` has no reward at all.
 */
export type RewardRule =
  | { readonly kind: "graded"; readonly whenMissing?: number }
  | { readonly kind: "fixed"; readonly value: number }
  | { readonly kind: "none" };

/** What one way of ending means for training. */
export interface FailureRule {
  readonly reward: RewardRule;
  /** Its sampled tokens may be trained; false masks the whole attempt. */
  readonly isTrainable: boolean;
  /** Its reward counts in its group's mean and spread. */
  readonly isInBaseline: boolean;
  /** How many attempts of one rollout may end this way and be re-queued; 0 = never re-queued. */
  readonly maxRequeues: number;
  /** Raised to people at once, not only counted: nothing a policy does can cause or cure it. */
  readonly isAlarm: boolean;
}

export type FailurePolicy = Readonly<Record<AttemptEndReason, FailureRule>>;

const outcome = { isTrainable: true, isInBaseline: true, maxRequeues: 0, isAlarm: false } as const;
const excluded = {
  reward: { kind: "none" },
  isTrainable: false,
  isInBaseline: false,
  maxRequeues: 0,
  isAlarm: false,
} as const;

/**
 * The defaults. What the agent did is an outcome and is trained (its own error or time-out with
 * reward 0); what the infrastructure did is retried, then masked and left out of the baseline.
 */
export const defaultFailurePolicy: FailurePolicy = {
  succeeded: { ...outcome, reward: { kind: "graded" } },
  truncated: { ...outcome, reward: { kind: "graded" } },
  "agent-error": { ...outcome, reward: { kind: "fixed", value: 0 } },
  "timed-out": { ...outcome, reward: { kind: "fixed", value: 0 } },
  evicted: { ...excluded, maxRequeues: 3 },
  "infra-error": { ...excluded, maxRequeues: 2 },
  "never-called": { ...excluded, isAlarm: true },
  cancelled: excluded,
};

/** Why a rollout has no part in training or in its group's baseline. */
export type ExclusionReason = "masked-by-policy" | "reward-missing" | "reward-not-finite";

export interface RolloutOutcome {
  /** Absent when there is none: a missing reward is never a zero. */
  readonly reward?: number;
  readonly isTrainable: boolean;
  readonly isInBaseline: boolean;
  /** Present when `isTrainable` is false. */
  readonly exclusion?: ExclusionReason;
}

function rewardOf(rule: RewardRule, graded: number | undefined): number | undefined {
  switch (rule.kind) {
    case "graded":
      return graded ?? rule.whenMissing;
    case "fixed":
      return rule.value;
    case "none":
      return undefined;
  }
}

/**
 * What one ended attempt contributes. Without a finite reward nothing is trained and the baseline
 * does not count it, whatever the table says: there is no number to compare.
 *
 * @param gradedReward the grader's reward, undefined when it gave none
 */
export function resolveOutcome(
  reason: AttemptEndReason,
  gradedReward: number | undefined,
  policy: FailurePolicy,
): RolloutOutcome {
  const rule = policy[reason];
  const reward = rewardOf(rule.reward, gradedReward);
  if (reward === undefined) {
    const isWanted = rule.isTrainable || rule.isInBaseline;
    const exclusion = isWanted ? "reward-missing" : "masked-by-policy";
    return { isTrainable: false, isInBaseline: false, exclusion };
  }
  if (!Number.isFinite(reward)) {
    return { isTrainable: false, isInBaseline: false, exclusion: "reward-not-finite" };
  }
  const { isTrainable, isInBaseline } = rule;
  return isTrainable
    ? { reward, isTrainable, isInBaseline }
    : { reward, isTrainable, isInBaseline, exclusion: "masked-by-policy" };
}
