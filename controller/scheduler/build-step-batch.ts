import type { AssembledSample } from "../../core/assembly/assembled-sample.ts";
import type { AssemblyOptions } from "../../core/assembly/assembly-options.ts";
import { buildSamples } from "../../core/assembly/build-samples.ts";
import type { Call } from "../../core/call.ts";
import type { RunCapture } from "../../core/capture-report.ts";
import {
  buildTrainingSamples,
  type TrainingSettings,
  type TrainingStep,
} from "../../core/weights/build-training-samples.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore, StoredRollout } from "../store/rollout-store.ts";

export interface StepBatch {
  readonly rollouts: readonly StoredRollout[];
  readonly step: TrainingStep;
  readonly capture: RunCapture;
}

/**
 * The training samples of some complete groups, from what is durable. The same groups give the
 * same batch at any time, so an update that a crash interrupted can be made again.
 */
export async function buildStepBatch(
  stores: { readonly rollouts: RolloutStore; readonly calls: CallStore },
  groupIds: readonly string[],
  settings: { readonly training: TrainingSettings; readonly assembly: AssemblyOptions },
): Promise<StepBatch> {
  const groups: { readonly groupId: string; readonly rollouts: readonly StoredRollout[] }[] = [];
  const calls: Call[] = [];
  const rewardEvents = new Map<string, readonly { atMs: number; value: number }[]>();
  for (const groupId of groupIds) {
    const rollouts = await stores.rollouts.list({ groupId });
    groups.push({ groupId, rollouts });
    for (const rollout of rollouts) {
      const { acceptedAttemptId } = rollout.rollout;
      if (acceptedAttemptId === undefined) continue;
      calls.push(...(await stores.calls.callsOfAttempt(rollout.rolloutId, acceptedAttemptId)));
      if (needsEvents(settings.training)) {
        const events = await stores.calls.eventsOfAttempt(rollout.rolloutId, acceptedAttemptId);
        rewardEvents.set(rollout.rolloutId, events.flatMap(toRewardEvent));
      }
    }
  }
  const rollouts = groups.flatMap((group) => group.rollouts);
  const built = buildSamples(calls, {
    ...settings.assembly,
    acceptedAttempts: new Map(
      rollouts.flatMap(({ rolloutId, rollout }) =>
        rollout.acceptedAttemptId === undefined ? [] : [[rolloutId, rollout.acceptedAttemptId]],
      ),
    ),
    expectedRollouts: rollouts.map((rollout) => rollout.rolloutId),
    rewardedRollouts: new Set(
      rollouts.filter((r) => r.reward !== undefined).map((r) => r.rolloutId),
    ),
  });
  const samplesOf = groupByRollout(built.samples);
  const step = buildTrainingSamples(
    groups.map((group) => ({
      groupId: group.groupId,
      rollouts: group.rollouts.map((rollout) => ({
        rolloutId: rollout.rolloutId,
        reward: rollout.reward,
        ...(rewardEvents.has(rollout.rolloutId) && {
          rewardEvents: rewardEvents.get(rollout.rolloutId) ?? [],
        }),
        isTrainable: rollout.outcome?.isTrainable ?? false,
        isInBaseline: rollout.outcome?.isInBaseline ?? false,
        samples: samplesOf.get(rollout.rolloutId) ?? [],
      })),
    })),
    settings.training,
  );
  return { rollouts, step, capture: built.report };
}

function groupByRollout(
  samples: readonly AssembledSample[],
): ReadonlyMap<string, readonly AssembledSample[]> {
  const byRollout = new Map<string, AssembledSample[]>();
  for (const sample of samples) {
    const known = byRollout.get(sample.rolloutId);
    if (known === undefined) byRollout.set(sample.rolloutId, [sample]);
    else known.push(sample);
  }
  return byRollout;
}

function needsEvents({ advantages }: TrainingSettings): boolean {
  return (
    advantages.estimator === "gigpo" ||
    ("credit" in advantages && advantages.credit?.kind === "per-turn")
  );
}

/** Rewards along the way are events of type `turn-reward`; the final one is the grader's. */
function toRewardEvent(event: {
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}): { atMs: number; value: number }[] {
  if (event.eventType !== "turn-reward") return [];
  const data = JSON.parse(event.dataJson) as { value?: unknown };
  return typeof data.value === "number" ? [{ atMs: event.atMs, value: data.value }] : [];
}
