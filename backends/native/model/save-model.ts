import { join } from "node:path";
import { allWritten, writeDurably } from "../../../runtime/durable-files.ts";
import type { LoadedModel } from "./load-model.ts";
import type { NamedWeights } from "./named-weights.ts";
import { type WriteSafetensorsOptions, writeSafetensors } from "./safetensors.ts";

/**
 * Writes a model into an existing directory in the Hugging Face layout: the source model's own
 * configuration, tokenizer and template, and the weights as `model.safetensors`. The element type
 * that config.json states follows the weights.
 */
export async function saveModel(
  directory: string,
  model: Pick<LoadedModel, "companionFiles">,
  weights: NamedWeights,
  options: WriteSafetensorsOptions = {},
): Promise<void> {
  // At once, so that the file system commits their fsyncs together.
  await allWritten([
    ...Array.from(model.companionFiles, ([name, contents]) =>
      writeDurably(
        join(directory, name),
        name === "config.json" ? withElementType(contents, options.dtype ?? "F32") : contents,
      ),
    ),
    writeSafetensors(join(directory, "model.safetensors"), weights, options),
  ]);
}

function withElementType(contents: Uint8Array, dtype: "F32" | "BF16"): string {
  const json = JSON.parse(new TextDecoder().decode(contents)) as Record<string, unknown>;
  const type = dtype === "F32" ? "float32" : "bfloat16";
  // transformers 4 wrote torch_dtype, 5 writes dtype; both read either.
  const field = "dtype" in json ? "dtype" : "torch_dtype";
  return `${JSON.stringify({ ...json, [field]: type }, null, 2)}\n`;
}
