import { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type { UpdateResult, UpdateSettings } from "../../core/trainer-backend.ts";
import { updateNotFinite } from "../native/training/check-update.ts";
import { createLogprobGapCollector } from "../native/training/logprob-gap.ts";
import { policyLossOfRow } from "../native/training/policy-loss.ts";
import type { AccumulatedGradient } from "./accumulate-gradient.ts";

/** Servers that write NaN into JSON as null must not look like servers that say 0. */
const outputSchema = z.object({
  loss_fn_outputs: z.array(
    z.object({ logprobs: z.object({ data: z.array(z.number().nullable()) }) }),
  ),
});

/** The trainer's logprobs of each row [T], entry 0 NaN, from the answers of all calls in order. */
export function readLogprobs(
  answers: readonly unknown[],
  samples: readonly TrainingSample[],
): Float32Array[] {
  const rows = answers.flatMap((answer) => {
    const parsed = outputSchema.safeParse(answer);
    if (parsed.success) return parsed.data.loss_fn_outputs.map(({ logprobs }) => logprobs.data);
    throw incomplete(z.prettifyError(parsed.error));
  });
  if (rows.length !== samples.length) {
    throw incomplete(`${rows.length} rows came back for ${samples.length}`);
  }
  return samples.map((sample, r) => {
    const row = rows[r] as (number | null)[];
    // A server may give back a padded row; never a shorter one.
    if (row.length < sample.tokenIds.length - 1) throw incomplete(`row ${r} came back cut`);
    const logprobs = new Float32Array(sample.tokenIds.length).fill(Number.NaN);
    for (let t = 1; t < logprobs.length; t++) logprobs[t] = row[t - 1] ?? Number.NaN;
    return logprobs;
  });
}

const incomplete = (message: string): OutriggerError =>
  new OutriggerError("tinker-failed", `forward_backward gives no usable logprobs: ${message}`, {
    origin: "backend",
    hint: "The server does not speak the protocol as this client knows it.",
  });

/** Loss, gap and clipping of an update from the logprobs that the server computed for it. */
export function summariseUpdate(
  samples: readonly TrainingSample[],
  { logprobs, referenceLogprobs }: AccumulatedGradient,
  settings: UpdateSettings,
): Omit<UpdateResult, "updateId" | "version" | "applied" | "gradNorm" | "sampleCount"> {
  const gap = createLogprobGapCollector();
  const sum = { loss: 0, trained: 0, clipped: 0, masked: 0, kl: 0 };
  samples.forEach((sample, r) => {
    const own = logprobs[r] as Float32Array;
    const frozen = referenceLogprobs?.[r];
    const row = policyLossOfRow({ sample, logprobs: own, referenceLogprobs: frozen }, settings);
    if (!Number.isFinite(row.loss)) {
      throw updateNotFinite(`the loss of rollout ${sample.rolloutId} is ${row.loss}`);
    }
    sum.loss += row.loss;
    sum.trained += row.trained.length;
    sum.clipped += row.clippedCount;
    sum.masked += row.maskedCount;
    for (const t of row.trained) {
      gap.add(sample.samplingLogprobs[t] as number, own[t] as number);
      if (frozen !== undefined) sum.kl += k3((frozen[t] as number) - (own[t] as number));
    }
  });
  const { meanRatio, ...logprobGap } = gap.result();
  const perToken = (count: number): number => (sum.trained === 0 ? 0 : count / sum.trained);
  return {
    loss: sum.loss,
    trainedTokenCount: sum.trained,
    logprobGap,
    meanRatio,
    clippedFraction: perToken(sum.clipped),
    metrics: {
      "correction/masked_fraction": perToken(sum.masked),
      ...(referenceLogprobs === undefined ? {} : { "reference/kl": perToken(sum.kl) }),
    },
  };
}

const k3 = (d: number): number => Math.expm1(d) - d;

/** The gradient norm by whatever name the server gives it; NaN where it gives none. */
export function readOptimMetrics(answer: unknown): {
  readonly gradNorm: number;
  readonly metrics: Readonly<Record<string, number>>;
} {
  const metrics = z
    .object({ metrics: z.record(z.string(), z.number()).nullish() })
    .safeParse(answer).data?.metrics;
  const entries = Object.entries(metrics ?? {});
  const norm = entries.find(([name]) => /grad(ient)?[_-]?norm/i.test(name));
  return { gradNorm: norm?.[1] ?? Number.NaN, metrics: Object.fromEntries(entries) };
}
