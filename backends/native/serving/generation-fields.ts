import { z } from "zod";
import { badRequest } from "./error-response.ts";
import type { SamplingParameters } from "./sample-token.ts";

/** What both completion APIs say about how to sample. */
export interface GenerationFields {
  readonly choiceCount: number;
  /** Undefined: as many as fit in the context. */
  readonly maxTokens: number | undefined;
  readonly sampling: Omit<SamplingParameters, "topLogprobs">;
  readonly seed: number | undefined;
  readonly stopStrings: readonly string[];
  readonly stopIds: readonly number[];
  readonly ignoresEnd: boolean;
  readonly isStreamed: boolean;
  readonly includesUsage: boolean;
  readonly returnsTokenIds: boolean;
}

/** Fields whose other values would change what is sampled in a way that is not offered here. */
const offByDefault = {
  presence_penalty: z.literal(0).nullish(),
  frequency_penalty: z.literal(0).nullish(),
  repetition_penalty: z.literal(1).nullish(),
  min_p: z.literal(0).nullish(),
  min_tokens: z.literal(0).nullish(),
  logit_bias: z.record(z.string(), z.never()).nullish(),
  use_beam_search: z.literal(false).nullish(),
  include_stop_str_in_output: z.literal(false).nullish(),
};

export const generationShape = {
  model: z.string().nullish(),
  n: z.int().min(1).max(128).nullish(),
  temperature: z.number().min(0).max(100).nullish(),
  top_p: z.number().positive().max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  seed: z.int().nullish(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(32)]).nullish(),
  stop_token_ids: z.array(z.int().nonnegative()).nullish(),
  ignore_eos: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  return_token_ids: z.boolean().nullish(),
  ...offByDefault,
};

const generationSchema = z.looseObject(generationShape);

export function generationFields(
  body: z.output<typeof generationSchema>,
  maxTokens: number | null | undefined,
): GenerationFields {
  const stop = body.stop ?? [];
  return {
    choiceCount: body.n ?? 1,
    maxTokens: maxTokens ?? undefined,
    sampling: {
      temperature: body.temperature ?? 1,
      topP: body.top_p ?? 1,
      topK: Math.max(0, body.top_k ?? 0),
    },
    seed: body.seed ?? undefined,
    stopStrings: typeof stop === "string" ? [stop] : stop,
    stopIds: body.stop_token_ids ?? [],
    ignoresEnd: body.ignore_eos ?? false,
    isStreamed: body.stream ?? false,
    includesUsage: body.stream_options?.include_usage ?? false,
    returnsTokenIds: body.return_token_ids ?? false,
  };
}

/** Parses a JSON body; every problem is in the message, with its field. */
export function parseBody<S extends z.ZodType>(schema: S, bytes: Uint8Array): z.output<S> {
  let json: unknown;
  try {
    json = JSON.parse(new TextDecoder().decode(bytes)) as unknown;
  } catch (error) {
    throw badRequest(`the request body is not JSON: ${(error as Error).message}`);
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map((issue) => {
    const path = issue.path.join(".");
    const isOff = path in offByDefault;
    return `${path === "" ? "body" : path}: ${issue.message}${isOff ? " (not supported by this engine)" : ""}`;
  });
  throw badRequest(problems.join("; "));
}
