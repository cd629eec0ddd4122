import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { stringify } from "yaml";
import { parseModelConfig } from "../../backends/native/model/model-config.ts";
import { randomWeights } from "../../backends/native/model/random-weights.ts";
import { writeSafetensors } from "../../backends/native/model/safetensors.ts";

const specialTokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const modelConfig = {
  architectures: ["Qwen2ForCausalLM"],
  model_type: "qwen2",
  vocab_size: 259,
  hidden_size: 16,
  intermediate_size: 32,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 512,
  rope_theta: 10_000,
  rms_norm_eps: 1e-6,
  hidden_act: "silu",
  tie_word_embeddings: true,
  torch_dtype: "float32",
  eos_token_id: 2,
  pad_token_id: 0,
};

const template = `{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;

/** A byte-level tokenizer without merges: one token per byte, and three special ones. */
function tokenizerJson(): unknown {
  const printable = (b: number): boolean =>
    (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  let next = 256;
  const vocab: Record<string, number> = Object.fromEntries(specialTokens.map((t, i) => [t, i]));
  for (let byte = 0; byte < 256; byte += 1) {
    vocab[String.fromCodePoint(printable(byte) ? byte : next++)] = byte + specialTokens.length;
  }
  const byteLevel = {
    type: "ByteLevel",
    add_prefix_space: false,
    trim_offsets: true,
    use_regex: false,
  };
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: specialTokens.map((content, id) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: byteLevel,
    post_processor: null,
    decoder: byteLevel,
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges: [],
    },
  };
}

/** A random model of a few thousand parameters in the Hugging Face layout. */
export async function writeTinyModel(directory: string): Promise<void> {
  mkdirSync(directory, { recursive: true });
  const write = (name: string, value: unknown): void =>
    writeFileSync(join(directory, name), JSON.stringify(value));
  write("config.json", modelConfig);
  write("generation_config.json", { eos_token_id: 2, pad_token_id: 0 });
  write("tokenizer.json", tokenizerJson());
  write("tokenizer_config.json", {
    tokenizer_class: "PreTrainedTokenizerFast",
    eos_token: "<|im_end|>",
    pad_token: "<|endoftext|>",
    clean_up_tokenization_spaces: false,
  });
  writeFileSync(join(directory, "chat_template.jinja"), template);
  const weights = randomWeights(parseModelConfig(modelConfig, directory), {
    seed: 7,
    standardDeviation: 0.3,
  });
  await writeSafetensors(join(directory, "model.safetensors"), weights);
}

/**
 * Two turns over plain fetch, with the patience of an ordinary client: a few retries. `preface` is
 * run first, `beforeTurn` before each `turn` (0, 1).
 */
export const twoTurnHarness = ({ preface = "", beforeTurn = "" } = {}): string => `${preface}
import { writeFileSync } from "node:fs";
const url = process.env.OPENAI_BASE_URL + "/chat/completions";
const headers = { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" };
async function ask(messages) {
  for (let tries = 1; ; tries += 1) {
    try {
      const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ model: "policy", messages, max_tokens: 8 }) });
      if (!response.ok) throw new Error(response.status + " " + (await response.text()));
      return (await response.json()).choices[0].message.content ?? "";
    } catch (error) {
      if (tries === 3) throw error;
      await new Promise((go) => setTimeout(go, 50 * tries));
    }
  }
}
const messages = [{ role: "user", content: process.env.QUESTION }];
let text = "";
for (let turn = 0; turn < 2; turn += 1) {
  ${beforeTurn}
  const content = await ask(messages);
  text += content;
  messages.push({ role: "assistant", content }, { role: "user", content: "more" });
}
writeFileSync("answer.txt", text);
`;

/** Reward: the share of characters with an even code. */
const verifier = `
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { id, workspace } = JSON.parse(line);
  const text = readFileSync(join(workspace, "answer.txt"), "utf8");
  const even = [...text].filter((c) => c.codePointAt(0) % 2 === 0).length;
  process.stdout.write(JSON.stringify({ id, reward: text.length === 0 ? 0 : even / [...text].length }) + "\\n");
}
`;

export type Overrides = Readonly<Record<string, unknown>>;

/** Merges maps member by member; anything else replaces. */
function merge(base: Overrides, over: Overrides): Overrides {
  const isMap = (value: unknown): value is Overrides =>
    typeof value === "object" && value !== null && !Array.isArray(value);
  const merged: Record<string, unknown> = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const known = merged[key];
    merged[key] = isMap(known) && isMap(value) ? merge(known, value) : value;
  }
  return merged;
}

/**
 * Writes a whole experiment of the smallest size into a directory and gives its file's path.
 * A map in `over` is merged into the defaults; `files` replace or add files.
 */
export async function writeTinyExperiment(
  directory: string,
  over: Overrides = {},
  files: Readonly<Record<string, string>> = {},
): Promise<string> {
  await writeTinyModel(join(directory, "policy"));
  const tasks = (prefix: string, count: number): string =>
    Array.from({ length: count }, (_, i) =>
      JSON.stringify({ id: `${prefix}${i}`, question: `say ${i}`, answer: String(i) }),
    ).join("\n");
  const written: Record<string, string> = {
    "train.jsonl": tasks("t", 12),
    "held-out.jsonl": tasks("h", 4),
    "harness.mjs": twoTurnHarness(),
    "verify.mjs": verifier,
    ...files,
  };
  for (const [name, text] of Object.entries(written)) writeFileSync(join(directory, name), text);
  const experiment = merge(
    {
      name: "tiny",
      seed: 3,
      tasks: {
        train: { file: "train.jsonl" },
        heldOut: { file: "held-out.jsonl" },
        verifierOnly: ["answer"],
      },
      harness: {
        command: ["node", "./harness.mjs"],
        fromTask: { QUESTION: "question" },
        timeoutMs: 60_000,
        killGraceMs: 500,
        concurrency: 4,
      },
      reward: { verifier: { command: ["node", "./verify.mjs"], mode: "persistent" } },
      algorithm: { learningRate: 0.01 },
      schedule: { steps: 2, groupsPerStep: 2, groupSize: 4 },
      backend: { kind: "native", model: "policy", compute: "ort-cpu", flags: ["--threads", "1"] },
      evaluation: { before: true, after: true, count: 4, passReward: 0.5 },
    },
    over,
  );
  const file = join(directory, "experiment.yaml");
  writeFileSync(file, stringify(experiment));
  return file;
}
