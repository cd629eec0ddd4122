import { stat } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import { type ChatTemplate, compileChatTemplate } from "./chat-template.ts";
import { type ModelConfig, parseModelConfig } from "./model-config.ts";
import { missingModelFile, parseJsonFile, readOptionalFile } from "./model-files.ts";
import type { NamedWeights } from "./named-weights.ts";
import { openPolicyTokenizer, type PolicyTokenizer } from "./policy-tokenizer.ts";
import { readModelWeights } from "./read-model-weights.ts";

/** A policy read from a Hugging Face directory. */
export interface LoadedModel {
  readonly directory: string;
  /** The directory's last part; the model's name unless configured. */
  readonly name: string;
  readonly config: ModelConfig;
  readonly weights: NamedWeights;
  readonly tokenizer: PolicyTokenizer;
  /** Absent where the model has none: chat completions are then refused, completions are not. */
  readonly chatTemplate: ChatTemplate | undefined;
  /** Ids that end a response. */
  readonly endIds: ReadonlySet<number>;
  /** The files that are not weights, byte for byte, so that a checkpoint can carry them along. */
  readonly companionFiles: ReadonlyMap<string, Uint8Array>;
}

const companionNames = [
  "config.json",
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "chat_template.jinja",
];

type Companions = ReadonlyMap<string, Uint8Array>;

/**
 * Reads `config.json`, `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` (or the
 * template in the tokenizer's configuration), `generation_config.json`, and `model.safetensors` or
 * the shards that `model.safetensors.index.json` names.
 */
export async function loadModel(directory: string): Promise<LoadedModel> {
  const companionFiles = await readCompanions(directory);
  const config = parseModelConfig(
    requiredJson(companionFiles, directory, "config.json"),
    join(directory, "config.json"),
  );
  const tokenizerConfig = optionalJson(companionFiles, directory, "tokenizer_config.json") ?? {};
  const tokenizer = openPolicyTokenizer(
    requiredJson(companionFiles, directory, "tokenizer.json"),
    tokenizerConfig,
    join(directory, "tokenizer.json"),
  );
  checkVocabulary(tokenizer, config, directory);
  const specialTokens = specialTokensOf(tokenizerConfig);
  const weights = await readModelWeights(directory, config);
  return {
    directory,
    name: basename(resolve(directory)),
    config,
    weights,
    tokenizer,
    chatTemplate: openTemplate(companionFiles, tokenizerConfig, specialTokens, directory),
    endIds: endIdsOf(companionFiles, directory, tokenizer, specialTokens),
    companionFiles,
  };
}

/** What serving a policy needs that is computed elsewhere: all of a model but its weights. */
export interface PolicyModel
  extends Pick<LoadedModel, "directory" | "name" | "tokenizer" | "chatTemplate" | "endIds"> {
  readonly config: Pick<ModelConfig, "vocabSize" | "maxSequenceLength">;
}

const policyConfigSchema = z.looseObject({
  vocab_size: z.int().positive(),
  max_position_embeddings: z.int().positive(),
});

/** Reads the same files as `loadModel` but the weights, of a model of any architecture. */
export async function loadPolicyModel(directory: string): Promise<PolicyModel> {
  const files = await readCompanions(directory);
  const json = requiredJson(files, directory, "config.json") as { readonly text_config?: unknown };
  const parsed = policyConfigSchema.safeParse(json.text_config ?? json);
  if (!parsed.success) {
    throw new OutriggerError(
      "model-config-invalid",
      `${join(directory, "config.json")}: ${z.prettifyError(parsed.error)}`,
      { origin: "user", hint: "Take the config.json that belongs to the model." },
    );
  }
  const config = {
    vocabSize: parsed.data.vocab_size,
    maxSequenceLength: parsed.data.max_position_embeddings,
  };
  const tokenizerConfig = optionalJson(files, directory, "tokenizer_config.json") ?? {};
  const tokenizer = openPolicyTokenizer(
    requiredJson(files, directory, "tokenizer.json"),
    tokenizerConfig,
    join(directory, "tokenizer.json"),
  );
  checkVocabulary(tokenizer, config, directory);
  const specialTokens = specialTokensOf(tokenizerConfig);
  return {
    directory,
    name: basename(resolve(directory)),
    config,
    tokenizer,
    chatTemplate: openTemplate(files, tokenizerConfig, specialTokens, directory),
    endIds: endIdsOf(files, directory, tokenizer, specialTokens),
  };
}

async function readCompanions(directory: string): Promise<Companions> {
  const isDirectory = await stat(directory).then(
    (s) => s.isDirectory(),
    () => false,
  );
  if (!isDirectory) throw missingModelFile(`model directory ${directory} does not exist`);
  const files = new Map<string, Uint8Array>();
  for (const name of companionNames) {
    const contents = await readOptionalFile(join(directory, name));
    if (contents !== undefined) files.set(name, contents);
  }
  return files;
}

function requiredJson(files: Companions, directory: string, name: string): unknown {
  const json = optionalJson(files, directory, name);
  if (json === undefined) throw missingModelFile(`${join(directory, name)} does not exist`);
  return json;
}

function optionalJson(files: Companions, directory: string, name: string): unknown {
  const bytes = files.get(name);
  if (bytes === undefined) return undefined;
  return parseJsonFile(bytes, join(directory, name));
}

function checkVocabulary(
  tokenizer: PolicyTokenizer,
  config: Pick<ModelConfig, "vocabSize">,
  directory: string,
): void {
  if (tokenizer.idCount <= config.vocabSize) return;
  throw new OutriggerError(
    "tokenizer-mismatch",
    `${directory}: the tokenizer has ids up to ${tokenizer.idCount - 1}, the model's vocab_size is ${config.vocabSize}`,
    { origin: "user", hint: "tokenizer.json belongs to another model; take the model's own." },
  );
}

const tokenFieldSchema = z.union([z.string(), z.looseObject({ content: z.string() })]);

/** `bos_token`, `eos_token`, `pad_token`, `unk_token`: plain text or an added-token object. */
function specialTokensOf(tokenizerConfig: unknown): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const field of ["bos_token", "eos_token", "pad_token", "unk_token"]) {
    const parsed = tokenFieldSchema.safeParse((tokenizerConfig as Record<string, unknown>)[field]);
    if (!parsed.success) continue;
    tokens[field] = typeof parsed.data === "string" ? parsed.data : parsed.data.content;
  }
  return tokens;
}

const namedTemplates = z.array(z.looseObject({ name: z.string(), template: z.string() }));

function openTemplate(
  files: Companions,
  tokenizerConfig: unknown,
  specialTokens: Readonly<Record<string, string>>,
  directory: string,
): ChatTemplate | undefined {
  const own = files.get("chat_template.jinja");
  if (own !== undefined) {
    const source = new TextDecoder().decode(own);
    return compileChatTemplate(source, specialTokens, join(directory, "chat_template.jinja"));
  }
  const field = (tokenizerConfig as { chat_template?: unknown }).chat_template;
  const named = namedTemplates.safeParse(field);
  const source = named.success
    ? (
        named.data.find((t) => t.name === "tool_use") ??
        named.data.find((t) => t.name === "default")
      )?.template
    : field;
  if (typeof source !== "string") return undefined;
  return compileChatTemplate(source, specialTokens, join(directory, "tokenizer_config.json"));
}

const endIdSchema = z.looseObject({
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
});

/** As engines do: the generation configuration's end ids (else config.json's) and the tokenizer's. */
function endIdsOf(
  files: Companions,
  directory: string,
  tokenizer: PolicyTokenizer,
  specialTokens: Readonly<Record<string, string>>,
): ReadonlySet<number> {
  const ids = new Set<number>();
  for (const name of ["generation_config.json", "config.json"]) {
    const parsed = endIdSchema.safeParse(optionalJson(files, directory, name));
    const field = parsed.success ? parsed.data.eos_token_id : undefined;
    if (field === undefined || field === null) continue;
    for (const id of Array.isArray(field) ? field : [field]) ids.add(id);
    break;
  }
  const own = specialTokens["eos_token"];
  const ownId = own === undefined ? undefined : tokenizer.idOf(own);
  if (ownId !== undefined) ids.add(ownId);
  if (ids.size === 0) {
    throw new OutriggerError(
      "model-file-invalid",
      `${directory}: no end-of-text token (eos_token_id or eos_token) is named`,
      { origin: "user", hint: "Set eos_token_id in generation_config.json or config.json." },
    );
  }
  return ids;
}
