import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Compute } from "../../backends/native/compute/compute.ts";
import { selectCompute } from "../../backends/native/compute/select-compute.ts";
import { parseModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";
import { accumulateUpdate } from "../../backends/native/training/accumulate-update.ts";
import type { AdvantageSettings } from "../../core/advantages/step-advantages.ts";
import { assembleAttempt } from "../../core/assembly/assemble-attempt.ts";
import type { AssembledSample } from "../../core/assembly/assembled-sample.ts";
import { buildCall } from "../../core/assembly/testing/build-call.ts";
import { seededRandom } from "../../core/assembly/testing/random.ts";
import { splitRows } from "../../core/assembly/testing/split-rows.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import {
  buildTrainingSamples,
  type TrainingGroup,
} from "../../core/weights/build-training-samples.ts";
import type { Weighting } from "../../core/weights/weighting.ts";
import { updateSettings } from "./trainer-backend.ts";

const config = parseModelConfig(
  {
    model_type: "llama",
    vocab_size: 40,
    hidden_size: 16,
    intermediate_size: 32,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    max_position_embeddings: 64,
    rms_norm_eps: 1e-5,
  },
  "gradient invariance",
);

let compute: Compute;
beforeAll(async () => {
  const weights = randomWeights(config, { seed: 4, standardDeviation: 0.3, jitter: 0.1 });
  ({ compute } = await selectCompute("ort-cpu", config, weights, { threads: 1 }));
});
afterAll(() => compute.close());

/**
 * Two groups of three rollouts: some go on turn by turn (once with no token between two turns),
 * some branch, some have their history edited.
 */
function randomGroups(seed: number): TrainingGroup[] {
  const random = seededRandom(seed);
  const ids = (length: number): number[] => Array.from({ length }, () => random.below(40));
  return ["g", "h"].map((groupId) => ({
    groupId,
    rollouts: [0, 1, 2].map((member) => {
      const rolloutId = `${groupId}${member}`;
      let context = ids(3);
      const calls = Array.from({ length: 4 }, (_, turn) => {
        if (turn === 2 && member === 1) context = ids(4);
        const response = ids(1 + random.below(4));
        const logprobs = response.map(() => -3 - random.next());
        const call = buildCall(`c${turn + 1}`, context, response, { rolloutId, logprobs });
        const isBranch = turn === 1 && member === 2;
        if (!isBranch) context = [...context, ...response, ...ids(turn === 0 ? 0 : 2)];
        return call;
      });
      const rewardEvents = [{ atMs: 15, value: random.next() }];
      return {
        rolloutId,
        reward: random.next(),
        rewardEvents,
        samples: assembleAttempt(calls).samples,
      };
    }),
  }));
}

/** Where a whole response has one ratio, rows may part responses and not cut them. */
function isPerSequence({ loss, correction }: UpdateSettings): boolean {
  return loss.kind === "gspo" || (correction.kind !== "none" && correction.level === "sequence");
}

function oneRowPerResponse(samples: readonly AssembledSample[]): AssembledSample[] {
  return samples.flatMap((sample) =>
    sample.spans.map((span) => {
      const isOwn = (t: number): boolean => span.start <= t && t < span.end;
      return {
        ...sample,
        spans: [span],
        callIds: [span.call.callId],
        lossMask: sample.lossMask.map((_, t) => (isOwn(t) ? 1 : 0)),
        samplingLogprobs: sample.samplingLogprobs.map((x, t) => (isOwn(t) ? x : Number.NaN)),
        policyVersions: sample.policyVersions.map((x, t) => (isOwn(t) ? x : -1)),
      };
    }),
  );
}

interface Outcome {
  readonly loss: number;
  readonly gradient: NamedWeights;
}

async function outcomeOf(
  samples: readonly TrainingSample[],
  settings: UpdateSettings,
  tokenBudget: number,
): Promise<Outcome> {
  const { loss } = await accumulateUpdate(samples, { compute, settings, tokenBudget });
  const gradient = await compute.gradients();
  compute.clearGradients();
  return { loss, gradient };
}

/** The largest difference, relative where values are above 1. */
function distance(one: Outcome, other: Outcome): number {
  let worst = Math.abs(one.loss - other.loss);
  for (const [name, { data }] of one.gradient) {
    const scale = Math.max(1, ...data.map(Math.abs));
    const others = other.gradient.get(name)!.data;
    data.forEach((value, i) => {
      worst = Math.max(worst, Math.abs(value - others[i]!) / scale);
    });
  }
  return worst;
}

describe("invariant 4: one gradient, however rollouts are cut into samples and micro-batches", () => {
  it.each<[AdvantageSettings, Weighting, Partial<UpdateSettings>]>([
    [
      { estimator: "grpo" },
      { kind: "rollout-mean" },
      { loss: { kind: "ppo", clipLow: 0.8, clipHigh: 1.28, dualClip: 3 } },
    ],
    [
      { estimator: "gigpo", discount: 0.9 },
      { kind: "call-mean" },
      { loss: { kind: "gspo", clipLow: 0.5, clipHigh: 2 } },
    ],
    [
      { estimator: "rloo", credit: { kind: "per-turn", discount: 0.9 } },
      { kind: "token-mean" },
      { correction: { kind: "truncate", level: "sequence", max: 1.5 } },
    ],
    [
      { estimator: "reinforce-plus-plus" },
      { kind: "constant-norm", normTokens: 8 },
      { loss: { kind: "cispo", clipLow: 0, clipHigh: 4 } },
    ],
  ])("%o %o %o", async (advantages, weighting, change) => {
    const settings = { ...updateSettings, ...change };
    const groups = randomGroups(7);
    const random = seededRandom(11);
    const cut = isPerSequence(settings) ? oneRowPerResponse : splitRows;
    const split = groups.map((group) => ({
      ...group,
      rollouts: group.rollouts.map((rollout) => ({
        ...rollout,
        samples: cut(rollout.samples, random),
      })),
    }));
    const { samples } = buildTrainingSamples(groups, { advantages, weighting });
    expect(samples.some((sample) => sample.responseStarts !== undefined)).toBe(true);
    const { samples: pieces } = buildTrainingSamples(split, { advantages, weighting });
    expect(pieces.length).toBeGreaterThan(samples.length);
    const wanted = await outcomeOf(samples, settings, 4096);
    expect(wanted.gradient.size).toBeGreaterThan(0);
    for (const [rows, tokenBudget] of [
      [samples, 1],
      [samples.toReversed(), 40],
      [pieces, 4096],
      [pieces.toReversed(), 64],
    ] as const) {
      expect(distance(await outcomeOf(rows, settings, tokenBudget), wanted)).toBeLessThan(1e-6);
    }
    // The check sees a wrong step: one rollout that counts double.
    const heavy = samples.map((sample, i) =>
      i === 0 ? { ...sample, weights: sample.weights.map((weight) => 2 * weight) } : sample,
    );
    expect(distance(await outcomeOf(heavy, settings, 4096), wanted)).toBeGreaterThan(1e-5);
  });
});
