import { createHash } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { loadModel } from "../../../backends/native/model/load-model.ts";
import { saveModel } from "../../../backends/native/model/save-model.ts";
import { writeSmallModel } from "../../contract/trainer-backend-model.ts";

export const goldenMessages = [
  { role: "user", content: "What is 2 + 2? é€😀" },
  {
    role: "assistant",
    content: "",
    tool_calls: [
      { type: "function", function: { name: "calc", arguments: { a: [1, 2.5], "b c": 'x\n"y"' } } },
    ],
  },
  { role: "tool", content: "4" },
];

export const goldenTools = [
  {
    type: "function",
    function: {
      name: "calc",
      description: "Adds <numbers> & more.",
      parameters: { type: "object", properties: { a: { type: "array" } }, required: ["a"] },
    },
  },
];

/** Writes a checkpoint as the native backend does; the same bytes on every machine. */
export async function writeGoldenCheckpoint(directory: string): Promise<string> {
  const source = join(directory, "source");
  const checkpoint = join(directory, "checkpoint");
  await writeSmallModel(source, { seed: 11 });
  const model = await loadModel(source);
  await mkdir(checkpoint);
  await saveModel(checkpoint, model, model.weights);
  return checkpoint;
}

export async function sha256Of(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const directory = process.argv[2] as string;
  await writeGoldenCheckpoint(directory);
  process.stdout.write(JSON.stringify({ messages: goldenMessages, tools: goldenTools }));
}
