import type { ModelConfig } from "./model-config.ts";

export interface ParameterShape {
  readonly name: string;
  readonly shape: readonly number[];
}

/** The parameter names of one decoder layer, without their prefix. */
export function layerParameterNames(config: ModelConfig, layer: number) {
  const prefix = `model.layers.${layer}.`;
  const projection = (name: string) => ({
    weight: `${prefix}self_attn.${name}_proj.weight`,
    bias: config.hasQkvBias ? `${prefix}self_attn.${name}_proj.bias` : undefined,
  });
  return {
    inputNorm: `${prefix}input_layernorm.weight`,
    q: projection("q"),
    k: projection("k"),
    v: projection("v"),
    o: `${prefix}self_attn.o_proj.weight`,
    postNorm: `${prefix}post_attention_layernorm.weight`,
    gate: `${prefix}mlp.gate_proj.weight`,
    up: `${prefix}mlp.up_proj.weight`,
    down: `${prefix}mlp.down_proj.weight`,
  };
}

export const embeddingName = "model.embed_tokens.weight";
export const finalNormName = "model.norm.weight";

/** The matrix [vocabSize, hiddenSize] that makes the logits: its own, or the embedding when tied. */
export const headName = (config: ModelConfig): string =>
  config.tieWordEmbeddings ? embeddingName : "lm_head.weight";

/**
 * Every trainable parameter with its shape, in checkpoint order. Linear layers are [out, in], as in
 * Hugging Face's `LlamaForCausalLM` and `Qwen2ForCausalLM`. A tied head has no parameter of its own.
 */
export function parameterShapes(config: ModelConfig): ParameterShape[] {
  const { hiddenSize: d, intermediateSize: f, headDim } = config;
  const qSize = config.headCount * headDim;
  const kvSize = config.kvHeadCount * headDim;
  const shapes: ParameterShape[] = [{ name: embeddingName, shape: [config.vocabSize, d] }];
  for (let layer = 0; layer < config.layerCount; layer++) {
    const names = layerParameterNames(config, layer);
    shapes.push({ name: names.inputNorm, shape: [d] });
    for (const [projection, size] of [
      [names.q, qSize],
      [names.k, kvSize],
      [names.v, kvSize],
    ] as const) {
      shapes.push({ name: projection.weight, shape: [size, d] });
      if (projection.bias !== undefined) shapes.push({ name: projection.bias, shape: [size] });
    }
    shapes.push(
      { name: names.o, shape: [d, qSize] },
      { name: names.postNorm, shape: [d] },
      { name: names.gate, shape: [f, d] },
      { name: names.up, shape: [f, d] },
      { name: names.down, shape: [d, f] },
    );
  }
  shapes.push({ name: finalNormName, shape: [d] });
  if (!config.tieWordEmbeddings)
    shapes.push({ name: "lm_head.weight", shape: [config.vocabSize, d] });
  return shapes;
}
