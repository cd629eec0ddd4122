import type {
  Compute,
  DecodeSession,
  OptimizerState,
} from "../../backends/native/compute/compute.ts";
import { selectCompute } from "../../backends/native/compute/select-compute.ts";
import { parseModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";
import { randomStream } from "../../backends/native/serving/random-stream.ts";
import { sampleToken } from "../../backends/native/serving/sample-token.ts";
import { accumulateUpdate, stepUpdate } from "../../backends/native/training/accumulate-update.ts";
import type { AdvantageSettings } from "../../core/advantages/step-advantages.ts";
import { assembleAttempt } from "../../core/assembly/assemble-attempt.ts";
import type { CapturedCall } from "../../core/assembly/captured-call.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import {
  buildTrainingSamples,
  type TrainingGroup,
  type TrainingRollout,
} from "../../core/weights/build-training-samples.ts";
import type { Weighting } from "../../core/weights/weighting.ts";
import { updateSettings } from "./trainer-backend.ts";

const config = parseModelConfig(
  {
    model_type: "llama",
    vocab_size: 16,
    hidden_size: 16,
    intermediate_size: 32,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    max_position_embeddings: 16,
    rms_norm_eps: 1e-5,
  },
  "planted signal",
);

/**
 * What each task rewards: every token is good in two tasks of four, so that a policy which only
 * drifts, without regard to the task, gains nothing over all four.
 */
const isGood: readonly ((token: number) => boolean)[] = [
  (token) => token % 2 === 0,
  (token) => token % 2 === 1,
  (token) => token % 4 < 2,
  (token) => token % 4 >= 2,
];
/** Token that names the task, and the one that stands between two turns. */
const taskToken = (task: number): number => 4 * task + 1;
const separator = 7;
const groupSize = 18;
/** Of each group, so many are lost to the infrastructure: not trained, not in the baseline. */
const lostCount = 2;
const turnCount = 2;
/** Rollouts differ in length, so that the loss weightings differ. */
const responseLength = (index: number, turn: number): number => 2 + ((index * turn) % 2);

/** A mistake put into the step on purpose. */
export type PlantedBug = "sign-flipped" | "wrong-group" | "leaked-baseline";

export interface PlantedRun {
  readonly estimator: AdvantageSettings;
  readonly weighting: Weighting;
  readonly steps: number;
  readonly seed: number;
  readonly bug?: PlantedBug;
  readonly settings?: Partial<UpdateSettings>;
}

export interface PlantedPolicy {
  /** Share of good tokens before each step and after the last. */
  train(run: PlantedRun): Promise<readonly number[]>;
  close(): Promise<void>;
}

/** A random policy with its decode session; every run starts from the same weights. */
export async function openPlantedPolicy(): Promise<PlantedPolicy> {
  const weights = randomWeights(config, { seed: 3, standardDeviation: 0.3 });
  const { compute } = await selectCompute("ort-cpu", config, weights, { threads: 1 });
  const slots = isGood.length * groupSize;
  const decode = await compute.openDecode({ slots, maxLength: 16 });
  const start = { weights: await compute.weights(), optimizer: await compute.optimizerState() };
  return {
    train: (run) => trainPlanted(compute, decode, start, run),
    close: async () => {
      decode.close();
      await compute.close();
    },
  };
}

async function trainPlanted(
  compute: Compute,
  decode: DecodeSession,
  start: { readonly weights: NamedWeights; readonly optimizer: OptimizerState },
  run: PlantedRun,
): Promise<readonly number[]> {
  await compute.setWeights(start.weights);
  await compute.setOptimizerState(start.optimizer);
  const settings = { ...updateSettings, learningRate: 0.015, weightDecay: 0, ...run.settings };
  const shares: number[] = [];
  for (let step = 0; step <= run.steps; step++) {
    const rollouts = await sampleRollouts(decode, randomStream("planted", run.seed, step));
    shares.push(mean(rollouts.flatMap((one) => one.goodShares)));
    if (step === run.steps) break;
    const { samples } = buildTrainingSamples(buildGroups(rollouts, run), {
      advantages: run.estimator,
      weighting: run.weighting,
    });
    const flipped = samples.map((sample) =>
      run.bug === "sign-flipped"
        ? { ...sample, advantages: sample.advantages.map((a) => -a) }
        : sample,
    );
    await accumulateUpdate(flipped, { compute, settings, tokenBudget: 4096 });
    await stepUpdate(compute, settings);
  }
  return shares;
}

interface PlantedRollout {
  readonly task: number;
  readonly index: number;
  readonly calls: readonly CapturedCall[];
  /** Share of good tokens, by turn. */
  readonly goodShares: readonly number[];
}

/** All rollouts of a step side by side: two turns of two or three tokens each. */
async function sampleRollouts(
  decode: DecodeSession,
  random: () => number,
): Promise<PlantedRollout[]> {
  const rollouts = isGood.flatMap((_, task) =>
    Array.from({ length: groupSize }, (_one, index) => ({
      task,
      index,
      context: [0, taskToken(task)],
      calls: [] as CapturedCall[],
      goodShares: [] as number[],
    })),
  );
  for (let slot = 0; slot < rollouts.length; slot++) decode.truncate(slot, 0);
  for (let turn = 0; turn < turnCount; turn++) {
    const prompts = rollouts.map(({ context }) => Int32Array.from(context));
    const responses = rollouts.map(() => ({ ids: [] as number[], logprobs: [] as number[] }));
    for (let position = 0; ; position++) {
      const going = [...rollouts.keys()].filter(
        (slot) => position < responseLength(rollouts[slot]!.index, turn),
      );
      if (going.length === 0) break;
      const logits = await decode.extend(
        going.map((slot) => ({
          slot,
          tokenIds: Int32Array.from(rollouts[slot]!.context.slice(decode.lengthOf(slot))),
        })),
      );
      going.forEach((slot, i) => {
        const token = sampleToken(logits[i]!, { temperature: 1, topP: 1, topK: 0 }, random);
        responses[slot]!.ids.push(token.id);
        responses[slot]!.logprobs.push(token.logprob);
        rollouts[slot]!.context.push(token.id);
      });
    }
    rollouts.forEach((rollout, slot) => {
      const { ids, logprobs } = responses[slot]!;
      rollout.goodShares.push(mean(ids.map((id) => (isGood[rollout.task]!(id) ? 1 : 0))));
      rollout.calls.push(buildPlantedCall(rollout, turn, prompts[slot]!, ids, logprobs));
      rollout.context.push(separator);
    });
  }
  return rollouts;
}

function buildPlantedCall(
  { task, index }: { readonly task: number; readonly index: number },
  turn: number,
  promptIds: Int32Array,
  ids: readonly number[],
  logprobs: readonly number[],
): CapturedCall {
  return {
    callId: `t${task}-${index}.${turn}`,
    rolloutId: `t${task}-${index}`,
    attemptId: "1",
    requestId: `t${task}-${index}.${turn}`,
    choiceIndex: 0,
    promptIds,
    responseIds: Int32Array.from(ids),
    logprobs: Float32Array.from(logprobs),
    policyVersion: 0,
    startedAt: 10 * turn,
    finishedAt: 10 * turn + 5,
    delivered: true,
    complete: true,
    finishReason: "stop",
    usage: { promptTokens: promptIds.length, completionTokens: ids.length },
  };
}

/** One group per task, as an experiment would have them, or what the planted bug makes of it. */
function buildGroups(rollouts: readonly PlantedRollout[], run: PlantedRun): TrainingGroup[] {
  const isTransposed = run.bug === "wrong-group";
  const groups = new Map<string, TrainingRollout[]>();
  for (const rollout of rollouts) {
    const groupId = isTransposed ? `row ${rollout.index}` : `task ${rollout.task}`;
    const members = groups.get(groupId) ?? [];
    members.push(buildRollout(rollout, run));
    groups.set(groupId, members);
  }
  return Array.from(groups, ([groupId, members]) => ({ groupId, rollouts: members }));
}

/** Tasks differ far more in what they pay than what a good token adds: only siblings compare. */
function buildRollout(rollout: PlantedRollout, run: PlantedRun): TrainingRollout {
  const isLost = rollout.index >= groupSize - lostCount;
  const pay = run.estimator.estimator === "reinforce-plus-plus" ? 10 : 10 * (rollout.task + 1);
  const perTurn = run.estimator.estimator === "gigpo";
  const earned = perTurn ? 0 : mean(rollout.goodShares);
  return {
    rolloutId: `t${rollout.task}-${rollout.index}`,
    reward: isLost ? 0 : pay + earned,
    ...(perTurn &&
      !isLost && {
        rewardEvents: rollout.goodShares.map((value, turn) => ({ atMs: 10 * turn + 6, value })),
      }),
    isTrainable: !isLost,
    isInBaseline: !isLost || run.bug === "leaked-baseline",
    samples: assembleAttempt(rollout.calls).samples,
  };
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
