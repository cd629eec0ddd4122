import { basename, join } from "node:path";
import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "./model-config.ts";
import { missingModelFile, parseJsonFile, readOptionalFile } from "./model-files.ts";
import type { NamedWeights, Tensor } from "./named-weights.ts";
import { embeddingName, parameterShapes } from "./parameter-shapes.ts";
import { readSafetensors } from "./safetensors.ts";

/**
 * The weights of a model directory: `model.safetensors`, or the shards that
 * `model.safetensors.index.json` names. Exactly the parameters that the configuration asks for.
 */
export async function readModelWeights(
  directory: string,
  config: ModelConfig,
): Promise<NamedWeights> {
  return checkWeights(await readWeights(directory), config, directory);
}

const indexSchema = z.looseObject({ weight_map: z.record(z.string(), z.string()) });

async function readWeights(directory: string): Promise<NamedWeights> {
  const indexPath = join(directory, "model.safetensors.index.json");
  const index = await readOptionalFile(indexPath);
  const single = join(directory, "model.safetensors");
  if (index === undefined) return (await readSafetensors(single)).tensors;
  const parsed = indexSchema.safeParse(parseJsonFile(index, indexPath));
  if (!parsed.success) {
    throw new OutriggerError(
      "model-file-invalid",
      `${indexPath}: ${z.prettifyError(parsed.error)}`,
      { origin: "user", hint: "The shard index must map tensor names to files." },
    );
  }
  const tensors = new Map<string, Tensor>();
  for (const shard of new Set(Object.values(parsed.data.weight_map))) {
    if (shard !== basename(shard)) {
      throw missingModelFile(`${indexPath} names ${shard}, which is not a file of the directory`);
    }
    const file = await readSafetensors(join(directory, shard));
    for (const [name, tensor] of file.tensors) tensors.set(name, tensor);
  }
  return tensors;
}

/** Exactly the model's parameters, in checkpoint order; what a tied head repeats is left out. */
function checkWeights(found: NamedWeights, config: ModelConfig, directory: string): NamedWeights {
  const wanted = parameterShapes(config);
  const weights = new Map<string, Tensor>();
  const problems: string[] = [];
  for (const { name, shape } of wanted) {
    const tensor = found.get(name);
    if (tensor === undefined) problems.push(`tensor ${name} [${shape.join(", ")}] is missing`);
    else if (tensor.shape.join() !== shape.join()) {
      problems.push(
        `tensor ${name} has shape [${tensor.shape.join(", ")}], config.json asks for [${shape.join(", ")}]`,
      );
    } else weights.set(name, tensor);
  }
  for (const name of found.keys()) {
    const isDerived = name.endsWith("rotary_emb.inv_freq");
    const isTiedHead = name === "lm_head.weight" && config.tieWordEmbeddings;
    if (!weights.has(name) && !isDerived && !isTiedHead && !wanted.some((w) => w.name === name)) {
      problems.push(`tensor ${name} has no place in a ${config.architecture} decoder`);
    }
  }
  if (problems.length > 0) throw wrongWeights(directory, problems);
  checkFinite(weights, directory);
  return weights;
}

function wrongWeights(directory: string, problems: readonly string[]): OutriggerError {
  const shown = problems.slice(0, 8).map((p) => `\n  ${p}`);
  const rest = problems.length > 8 ? `\n  and ${problems.length - 8} more` : "";
  return new OutriggerError(
    "model-weights-mismatch",
    `${directory}: the weights are not those that config.json describes:${shown.join("")}${rest}`,
    {
      origin: "user",
      hint: `Check that config.json and the weights belong together (${embeddingName} gives vocab_size and hidden_size).`,
    },
  );
}

function checkFinite(weights: NamedWeights, directory: string): void {
  for (const [name, { data }] of weights) {
    for (let i = 0; i < data.length; i++) {
      if (!Number.isFinite(data[i])) {
        throw wrongWeights(directory, [`tensor ${name} holds ${data[i]} at index ${i}`]);
      }
    }
  }
}
