/**
 * Makes the starting policy in `policy/`: trains a tokenizer, then a small Qwen2 on demonstrations
 * of mixed quality, so that it solves roughly a third of the tasks and RL has something to find.
 *
 *   npx tsx examples/calculator/warm-start/make-policy.ts [--steps 3500] [--seed 1]
 *
 * About ten minutes on two cores. The result is committed, so the demo does not need this step.
 */
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { openOrtCompute } from "../../../backends/native/compute/ort/open-ort-compute.ts";
import { parseModelConfig } from "../../../backends/native/model/model-config.ts";
import { randomWeights } from "../../../backends/native/model/random-weights.ts";
import { writeSafetensors } from "../../../backends/native/model/safetensors.ts";
import {
  type SupervisedRow,
  supervisedStep,
} from "../../../backends/native/training/supervised-step.ts";
import { seededRandom } from "../make-tasks.ts";
import { demonstrate, type Message } from "./demonstrations.ts";
import { trainTokenizer } from "./train-tokenizer.ts";

const vocabSize = 512;
const rowsPerStep = 64;
const peakLearningRate = 4e-3;
const folder = new URL("../policy/", import.meta.url);
const file = (name: string): URL => new URL(name, folder);
const chatTemplate = readFileSync(new URL("chat-template.jinja", import.meta.url), "utf8");
const template = new Template(chatTemplate);
const specialTokens = [
  "<|endoftext|>",
  "<|im_start|>",
  "<|im_end|>",
  "<tool_call>",
  "</tool_call>",
  "<tool_response>",
  "</tool_response>",
];

/** Exactly what the harness sends. */
const tools = [
  {
    type: "function",
    function: {
      name: "calculator",
      description: "Evaluates an arithmetic expression.",
      parameters: {
        type: "object",
        properties: { expression: { type: "string" } },
        required: ["expression"],
      },
    },
  },
];

const modelConfig = {
  architectures: ["Qwen2ForCausalLM"],
  model_type: "qwen2",
  vocab_size: vocabSize,
  hidden_size: 64,
  intermediate_size: 192,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1024,
  rope_theta: 10000,
  rms_norm_eps: 1e-6,
  hidden_act: "silu",
  tie_word_embeddings: true,
  use_sliding_window: false,
  torch_dtype: "float32",
  bos_token_id: null,
  eos_token_id: specialTokens.indexOf("<|im_end|>"),
  pad_token_id: 0,
};

const render = (messages: readonly Message[]): string => template.render({ messages, tools });

const turnStart = "<|im_start|>assistant\n";
const turnEnd = "<|im_end|>";

/** One conversation as a row: each assistant turn is learned up to and including its end mark. */
function buildRow(messages: readonly Message[], encode: (text: string) => number[]): SupervisedRow {
  const tokenIds: number[] = [];
  const mask: number[] = [];
  const append = (text: string, trained: 0 | 1): void => {
    for (const id of encode(text)) {
      tokenIds.push(id);
      mask.push(trained);
    }
  };
  const [opening, ...turns] = render(messages).split(turnStart) as [string, ...string[]];
  append(opening + turnStart, 0);
  for (const [i, turn] of turns.entries()) {
    const end = turn.indexOf(turnEnd) + turnEnd.length;
    append(turn.slice(0, end), 1);
    if (i + 1 < turns.length) append(turn.slice(end) + turnStart, 0);
  }
  return { tokenIds: Int32Array.from(tokenIds), lossMask: Uint8Array.from(mask) };
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      steps: { type: "string", default: "3500" },
      seed: { type: "string", default: "1" },
    },
  });
  const stepCount = Number(values.steps);
  const random = seededRandom(Number(values.seed));

  const corpus = Array.from({ length: 2000 }, () => render(demonstrate(random)));
  const tokenizerJson = trainTokenizer(corpus, specialTokens, vocabSize);
  const tokenizer = new Tokenizer(tokenizerJson, {});
  const encode = (text: string): number[] =>
    tokenizer.encode(text, { add_special_tokens: false }).ids;

  const config = parseModelConfig(modelConfig, "config.json");
  const compute = await openOrtCompute(
    config,
    randomWeights(config, { seed: Number(values.seed) }),
  );
  for (let step = 1; step <= stepCount; step += 1) {
    const rows = Array.from({ length: rowsPerStep }, () => buildRow(demonstrate(random), encode));
    const warmUp = Math.min(1, step / 100);
    const decay = 0.5 * (1 + Math.cos((Math.PI * step) / stepCount));
    const { loss } = await supervisedStep(compute, rows, {
      learningRate: peakLearningRate * warmUp * decay,
      beta1: 0.9,
      beta2: 0.98,
      epsilon: 1e-8,
      weightDecay: 0.01,
      maxGradNorm: 1,
    });
    if (step % 50 === 0) {
      process.stdout.write(`step ${step}/${stepCount} loss ${loss.toFixed(4)}\n`);
    }
  }

  mkdirSync(folder, { recursive: true });
  const json = (name: string, value: unknown): void =>
    writeFileSync(file(name), `${JSON.stringify(value, null, 1)}\n`);
  json("config.json", modelConfig);
  json("tokenizer.json", tokenizerJson);
  json("tokenizer_config.json", {
    tokenizer_class: "PreTrainedTokenizerFast",
    eos_token: "<|im_end|>",
    pad_token: "<|endoftext|>",
    clean_up_tokenization_spaces: false,
    model_max_length: 1024,
  });
  json("generation_config.json", { eos_token_id: modelConfig.eos_token_id, pad_token_id: 0 });
  copyFileSync(new URL("chat-template.jinja", import.meta.url), file("chat_template.jinja"));
  await writeSafetensors(file("model.safetensors").pathname, await compute.weights());
  await compute.close();
}

await main();
