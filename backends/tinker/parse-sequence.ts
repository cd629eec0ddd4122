import { z } from "zod";
import { OutriggerError } from "../../core/outrigger-error.ts";

const answerSchema = z.object({
  sequences: z
    .array(
      z.object({
        stop_reason: z.string(),
        tokens: z.array(z.int().nonnegative()).min(1),
        logprobs: z.array(z.number().nullable()),
      }),
    )
    .min(1),
});

/** The first sequence of an `asample` answer, with one finite logprob per token. */
export function parseSequence(answer: unknown): {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
} {
  const parsed = answerSchema.safeParse(answer);
  if (!parsed.success) throw unusable(z.prettifyError(parsed.error));
  const { tokens, logprobs } = parsed.data.sequences[0]!;
  if (tokens.length !== logprobs.length) {
    throw unusable(`${logprobs.length} logprobs for ${tokens.length} tokens`);
  }
  const wrong = logprobs.findIndex((value) => value === null || !Number.isFinite(value));
  if (wrong >= 0) {
    throw unusable(`the logprob of token ${wrong} is ${logprobs[wrong]}, not finite`);
  }
  return { tokens, logprobs: logprobs as number[] };
}

/**
 * The logprobs of the prompt's tokens [T], entry 0 NaN, from an `asample` answer that was asked
 * for them.
 */
export function parsePromptLogprobs(answer: unknown, length: number): Float32Array {
  const parsed = promptSchema.safeParse(answer);
  if (!parsed.success) throw unusable(z.prettifyError(parsed.error));
  const { prompt_logprobs: values } = parsed.data;
  // Some servers leave out the first token, which nothing predicts.
  const shift = length - values.length;
  if (shift !== 0 && shift !== 1) {
    throw unusable(`${values.length} prompt logprobs for ${length} tokens`);
  }
  const logprobs = new Float32Array(length).fill(Number.NaN);
  for (let t = 1; t < length; t++) {
    const value = values[t - shift];
    if (value === null || value === undefined || !Number.isFinite(value)) {
      throw unusable(`the logprob of prompt token ${t} is ${value}, not finite`);
    }
    logprobs[t] = value;
  }
  return logprobs;
}

const promptSchema = z.object({ prompt_logprobs: z.array(z.number().nullable()) });

const unusable = (message: string): OutriggerError =>
  new OutriggerError("tinker-sample-unusable", `asample gives no usable sequence: ${message}`, {
    origin: "backend",
    hint: "The policy has broken, or the server does not report logprobs.",
  });
