import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";

/** The part of a Hugging Face `config.json` that a Llama or Qwen2 decoder needs. */
export interface ModelConfig {
  readonly architecture: "llama" | "qwen2";
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layerCount: number;
  readonly headCount: number;
  readonly kvHeadCount: number;
  readonly headDim: number;
  readonly maxSequenceLength: number;
  readonly ropeTheta: number;
  readonly rmsNormEpsilon: number;
  readonly tieWordEmbeddings: boolean;
  /** Bias on the q, k and v projections (Qwen2: yes; Llama: `attention_bias`). */
  readonly hasQkvBias: boolean;
}

const schema = z.looseObject({
  model_type: z.enum(["llama", "qwen2"]),
  vocab_size: z.int().positive(),
  hidden_size: z.int().positive(),
  intermediate_size: z.int().positive(),
  num_hidden_layers: z.int().positive(),
  num_attention_heads: z.int().positive(),
  num_key_value_heads: z.int().positive().optional(),
  head_dim: z.int().positive().nullish(),
  max_position_embeddings: z.int().positive(),
  rope_theta: z.number().positive().optional(),
  rope_parameters: z
    .looseObject({ rope_theta: z.number().positive().optional(), rope_type: z.string().optional() })
    .nullish(),
  rope_scaling: z.unknown().optional(),
  rms_norm_eps: z.number().positive(),
  tie_word_embeddings: z.boolean().default(false),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  hidden_act: z.string().default("silu"),
  use_sliding_window: z.boolean().default(false),
});

const unsupported = (field: string, value: unknown, path: string): OutriggerError =>
  new OutriggerError(
    "model-unsupported",
    `${path}: ${field} = ${JSON.stringify(value)} is not supported`,
    {
      origin: "user",
      hint: "The native backend trains plain Llama and Qwen2 decoders.",
    },
  );

/** Parses the contents of `config.json`; `path` names it in errors. */
export function parseModelConfig(json: unknown, path: string): ModelConfig {
  const parsed = schema.safeParse(json);
  if (!parsed.success) {
    throw new OutriggerError("model-config-invalid", `${path}: ${z.prettifyError(parsed.error)}`, {
      origin: "user",
      hint: "The native backend reads Llama and Qwen2 models in the Hugging Face layout.",
    });
  }
  const c = parsed.data;
  if (c.hidden_act !== "silu") throw unsupported("hidden_act", c.hidden_act, path);
  if (c.mlp_bias) throw unsupported("mlp_bias", true, path);
  if (c.use_sliding_window) throw unsupported("use_sliding_window", true, path);
  if (c.rope_scaling !== undefined && c.rope_scaling !== null)
    throw unsupported("rope_scaling", c.rope_scaling, path);
  const ropeType = c.rope_parameters?.rope_type ?? "default";
  if (ropeType !== "default") throw unsupported("rope_parameters.rope_type", ropeType, path);
  if (c.model_type === "llama" && c.attention_bias) throw unsupported("attention_bias", true, path);
  const kvHeadCount = c.num_key_value_heads ?? c.num_attention_heads;
  if (c.num_attention_heads % kvHeadCount !== 0) {
    throw unsupported("num_key_value_heads", kvHeadCount, path);
  }
  return {
    architecture: c.model_type,
    vocabSize: c.vocab_size,
    hiddenSize: c.hidden_size,
    intermediateSize: c.intermediate_size,
    layerCount: c.num_hidden_layers,
    headCount: c.num_attention_heads,
    kvHeadCount,
    headDim: c.head_dim ?? c.hidden_size / c.num_attention_heads,
    maxSequenceLength: c.max_position_embeddings,
    ropeTheta: c.rope_parameters?.rope_theta ?? c.rope_theta ?? 10_000,
    rmsNormEpsilon: c.rms_norm_eps,
    tieWordEmbeddings: c.tie_word_embeddings,
    hasQkvBias: c.model_type === "qwen2",
  };
}
