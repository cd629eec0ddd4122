import { z } from "zod";
import {
  type GenerationFields,
  generationFields,
  generationShape,
  parseBody,
} from "./generation-fields.ts";

export interface CompletionRequest extends GenerationFields {
  readonly prompts: readonly (string | readonly number[])[];
  /** How many alternatives per token; undefined means no logprobs. */
  readonly logprobs: number | undefined;
}

const id = z.int().nonnegative();
const completionSchema = z.looseObject({
  ...generationShape,
  prompt: z.union([
    z.string(),
    z.array(id).min(1),
    z.array(z.string()).min(1),
    z.array(z.array(id).min(1)).min(1),
  ]),
  max_tokens: z.int().min(1).nullish(),
  logprobs: z.int().min(0).max(20).nullish(),
  best_of: z.literal(1).nullish(),
  echo: z.literal(false).nullish(),
  suffix: z.literal("").nullish(),
});

/** 16 tokens unless said otherwise, as the completions API has always had it. */
const defaultMaxTokens = 16;

export function parseCompletionRequest(bytes: Uint8Array): CompletionRequest {
  const body = parseBody(completionSchema, bytes);
  const { prompt } = body;
  const isOne = typeof prompt === "string" || typeof prompt[0] === "number";
  return {
    ...generationFields(body, body.max_tokens ?? defaultMaxTokens),
    prompts: (isOne ? [prompt] : prompt) as readonly (string | readonly number[])[],
    logprobs: body.logprobs ?? undefined,
  };
}
