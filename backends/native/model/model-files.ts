import { readFile } from "node:fs/promises";
import { OutriggerError } from "../../../core/outrigger-error.ts";

export const missingModelFile = (message: string): OutriggerError =>
  new OutriggerError("model-file-missing", message, {
    origin: "user",
    hint: "A model directory holds config.json, tokenizer.json and model.safetensors.",
  });

/** The bytes of a file, or undefined where there is none. */
export async function readOptionalFile(path: string): Promise<Uint8Array | undefined> {
  try {
    return await readFile(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw missingModelFile(`cannot read ${path}: ${(error as Error).message}`);
  }
}

export function parseJsonFile(bytes: Uint8Array, path: string): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes)) as unknown;
  } catch (cause) {
    throw new OutriggerError(
      "model-file-invalid",
      `${path} is not JSON: ${(cause as Error).message}`,
      { origin: "user", hint: "The file is damaged; fetch it again.", cause },
    );
  }
}
