import { OutriggerError } from "../outrigger-error.ts";

/** Something that was rewarded during an attempt. */
export interface RewardEvent {
  /** Milliseconds since the epoch; the event belongs to the last turn that had begun by then. */
  readonly atMs: number;
  readonly value: number;
}

export interface RolloutRewards {
  /** Final reward; undefined where none is known, which is never the same as 0. */
  readonly reward: number | undefined;
  /** Rewards along the way, in any order. */
  readonly events?: readonly RewardEvent[];
}

/**
 * How a turn's value comes from rewards: `outcome` gives every turn the final reward; `per-turn`
 * the discounted sum of what was rewarded at this turn and after it, the final reward at the last.
 */
export type CreditSettings =
  | { readonly kind: "outcome" }
  | { readonly kind: "per-turn"; readonly discount: number };

/**
 * The value of each turn of a rollout, or undefined where it has no reward at all. Turns are given
 * by their start times in order of time, so that a turn's place in a row never matters. Outcome
 * credit gives one value for all turns together.
 *
 * @throws OutriggerError `reward-not-finite`.
 */
export function rolloutValues(
  rewards: RolloutRewards,
  turnStartsMs: readonly number[],
  credit: CreditSettings,
): readonly number[] | undefined {
  const { reward, events = [] } = rewards;
  for (const value of [...(reward === undefined ? [] : [reward]), ...events.map((e) => e.value)]) {
    if (!Number.isFinite(value)) throw notFinite(value);
  }
  if (credit.kind === "outcome") return reward === undefined ? undefined : [reward];
  if (reward === undefined && events.length === 0) return undefined;
  const values = Array.from({ length: Math.max(1, turnStartsMs.length) }, () => 0);
  for (const event of events) {
    const turn = turnStartsMs.findLastIndex((startMs) => startMs <= event.atMs);
    values[Math.max(0, turn)] = (values[Math.max(0, turn)] as number) + event.value;
  }
  const last = values.length - 1;
  values[last] = (values[last] as number) + (reward ?? 0);
  for (let turn = last - 1; turn >= 0; turn--) {
    values[turn] = (values[turn] as number) + credit.discount * (values[turn + 1] as number);
  }
  return values;
}

function notFinite(value: number): OutriggerError {
  return new OutriggerError("reward-not-finite", `a reward is ${value}`, {
    origin: "user",
    hint: "Let the grader return a finite number, or nothing where it cannot judge.",
  });
}
