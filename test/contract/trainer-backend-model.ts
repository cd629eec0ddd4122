import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseModelConfig } from "../../backends/native/model/model-config.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";
import { writeSafetensors } from "../../backends/native/model/safetensors.ts";

/** GPT-2's printable stand-ins for the 256 bytes, in order of the byte. */
function byteCharacters(): string[] {
  const printable = (b: number): boolean =>
    (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : next++));
}

const specialTokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const tagTokens = ["<tool_call>", "</tool_call>"];

/** One id per byte, then the special tokens 256-258 and the tool tags 259-260. */
export const smallModelIds = { endOfText: 256, imStart: 257, imEnd: 258, toolCall: 259 } as const;

const chatTemplate = `{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}`;

/**
 * Writes a random Qwen2 model of a few ten thousand parameters, with a byte-level tokenizer and a
 * chat template with tools, as Hugging Face lays it out.
 */
export async function writeSmallModel(
  directory: string,
  options: {
    readonly seed?: number;
    /** Overrides of config.json. */
    readonly config?: Readonly<Record<string, unknown>>;
  } = {},
): Promise<void> {
  const config = {
    architectures: ["Qwen2ForCausalLM"],
    model_type: "qwen2",
    vocab_size: 272,
    hidden_size: 32,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: 512,
    rope_theta: 10_000,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: true,
    torch_dtype: "float32",
    eos_token_id: smallModelIds.imEnd,
    ...options.config,
  };
  const added = [...specialTokens, ...tagTokens].map((content, i) => ({
    id: 256 + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: specialTokens.includes(content),
  }));
  const tokenizer = {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: null,
    pre_tokenizer: {
      type: "ByteLevel",
      add_prefix_space: false,
      trim_offsets: true,
      use_regex: true,
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: "",
      end_of_word_suffix: "",
      fuse_unk: false,
      byte_fallback: false,
      vocab: Object.fromEntries(byteCharacters().map((c, id) => [c, id])),
      merges: [],
    },
  };
  await mkdir(directory, { recursive: true });
  const json = (name: string, value: unknown): Promise<void> =>
    writeFile(join(directory, name), JSON.stringify(value, null, 1));
  await json("config.json", config);
  await json("tokenizer.json", tokenizer);
  await json("tokenizer_config.json", {
    eos_token: "<|im_end|>",
    clean_up_tokenization_spaces: false,
  });
  await writeFile(join(directory, "chat_template.jinja"), chatTemplate);
  const parsed = parseModelConfig(config, join(directory, "config.json"));
  const weights = randomWeights(parsed, {
    seed: options.seed ?? 1,
    standardDeviation: 0.2,
    jitter: 0.05,
  });
  await writeSafetensors(join(directory, "model.safetensors"), weights);
}
