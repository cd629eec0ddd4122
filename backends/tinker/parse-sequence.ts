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

const unusable = (message: string): OutriggerError =>
  new OutriggerError("tinker-sample-unusable", `asample gives no usable sequence: ${message}`, {
    origin: "backend",
    hint: "The policy has broken, or the server does not report logprobs.",
  });
