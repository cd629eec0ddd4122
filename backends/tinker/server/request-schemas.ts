import { z } from "zod";

/** What clients send, as the official client (0.19) writes it; members beyond these are ignored. */

const tokenId = z.int().nonnegative();
const modelInput = z.object({
  chunks: z.array(
    z.object({
      type: z.literal("encoded_text", "only text tokens can be trained and sampled here"),
      tokens: z.array(tokenId),
    }),
  ),
});

const tensor = z.object({
  data: z.array(z.number("must be a number, not NaN or infinite")),
  shape: z.array(z.int()).nullish(),
  sparse_crow_indices: z.null("sparse arrays are not supported").optional(),
});

const datum = z.object({ model_input: modelInput, loss_fn_inputs: z.record(z.string(), tensor) });

const lossInput = z.object({
  data: z.array(datum),
  loss_fn: z.enum(
    ["cross_entropy", "importance_sampling", "ppo", "cispo"],
    "this server has cross_entropy, importance_sampling, ppo and cispo",
  ),
  loss_fn_config: z.record(z.string(), z.number()).nullish(),
});

const seqId = z.int().nullish();
const model_id = z.string();
/** A name in a path: no separators, nothing hidden. */
const name = z
  .string()
  .regex(/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}$/, "letters, digits, '.', '_' and '-' only");

export const createSessionSchema = z.object({ sdk_version: z.string().optional() });
export const sessionSchema = z.object({ session_id: z.string() });
export const createModelSchema = z.object({
  session_id: z.string(),
  model_seq_id: z.int().nullish(),
  base_model: z.string(),
  lora_config: z.object({ rank: z.int().nonnegative() }).nullish(),
});
export const modelSchema = z.object({ model_id });
export const forwardSchema = z.object({ model_id, seq_id: seqId, forward_input: lossInput });
export const forwardBackwardSchema = z.object({
  model_id,
  seq_id: seqId,
  forward_backward_input: lossInput,
});
export const optimStepSchema = z.object({
  model_id,
  seq_id: seqId,
  adam_params: z.object({
    learning_rate: z.number().nonnegative().default(1e-4),
    beta1: z.number().min(0).lt(1).default(0.9),
    beta2: z.number().min(0).lt(1).default(0.95),
    eps: z.number().nonnegative().default(1e-12),
    weight_decay: z.number().nonnegative().default(0),
    grad_clip_norm: z.number().nonnegative().default(0),
  }),
});
export const saveWeightsSchema = z.object({ model_id, seq_id: seqId, path: name.nullish() });
export const saveForSamplerSchema = saveWeightsSchema.extend({
  sampling_session_seq_id: z.int().nullish(),
});
export const loadWeightsSchema = z.object({
  model_id,
  seq_id: seqId,
  path: z.string(),
  optimizer: z.boolean().default(true),
});
export const weightsInfoSchema = z.object({ tinker_path: z.string() });
export const samplingSessionSchema = z.object({
  session_id: z.string(),
  sampling_session_seq_id: z.int().nullish(),
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
});
export const sampleSchema = z.object({
  num_samples: z.int().min(1).max(128).default(1),
  prompt: modelInput,
  sampling_params: z.object({
    max_tokens: z.int().positive().nullish(),
    seed: z.int().nullish(),
    stop: z.union([z.string().min(1), z.array(z.string().min(1)), z.array(tokenId)]).nullish(),
    temperature: z.number().min(0).max(100).default(1),
    top_k: z.int().min(-1).default(-1),
    top_p: z.number().positive().max(1).default(1),
  }),
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
  sampling_session_id: z.string().nullish(),
  prompt_logprobs: z.boolean().nullish(),
  topk_prompt_logprobs: z.literal(0, "alternatives of prompt tokens are not supported").default(0),
});
export const futureSchema = z.object({ request_id: z.string() });

export type LossInput = z.output<typeof lossInput>;
export type WireDatum = z.output<typeof datum>;
export type SampleInput = z.output<typeof sampleSchema>;
export type AdamInput = z.output<typeof optimStepSchema>["adam_params"];
