import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { selectCompute } from "../../../backends/native/compute/select-compute.ts";
import { loadModel } from "../../../backends/native/model/load-model.ts";
import { readSafetensors } from "../../../backends/native/model/safetensors.ts";
import { decodeIds } from "../../../backends/native/model/text-decoder.ts";
import {
  goldenMessages,
  goldenTools,
  sha256Of,
  writeGoldenCheckpoint,
} from "./golden-checkpoint.ts";

// Made by make_golden.py in this folder.
const here = import.meta.dirname;
const json = async <T>(name: string): Promise<T> =>
  JSON.parse(await readFile(join(here, name), "utf8")) as T;

interface CheckpointGolden {
  readonly sha256: string;
  readonly rendered: string;
  readonly ids: number[];
  readonly text: string;
  readonly logprobs: number[];
}

it("writes checkpoints that Hugging Face transformers load, with the same numbers", async () => {
  const golden = await json<CheckpointGolden>("checkpoint.json");
  const directory = await mkdtemp(join(tmpdir(), "golden-checkpoint-"));
  const checkpoint = await writeGoldenCheckpoint(directory);
  // The very bytes that transformers loaded without a missing or unexpected tensor.
  expect(await sha256Of(join(checkpoint, "model.safetensors"))).toBe(golden.sha256);
  const model = await loadModel(checkpoint);
  const rendered = model.chatTemplate!.render({
    messages: goldenMessages,
    tools: goldenTools,
    addGenerationPrompt: true,
  });
  expect(rendered).toBe(golden.rendered);
  const ids = model.tokenizer.encode(rendered, false);
  expect(Array.from(ids)).toEqual(golden.ids);
  expect(decodeIds(model.tokenizer, ids)).toBe(golden.text);
  const { compute } = await selectCompute("ort-cpu", model.config, model.weights, { threads: 1 });
  const [logprobs] = await compute.logprobs([ids], 1);
  golden.logprobs.forEach((wanted, t) => {
    expect(Math.abs(logprobs![t + 1]! - wanted)).toBeLessThan(1e-5);
  });
  await compute.close();
  await rm(directory, { recursive: true });
});

it("reads every element type as the safetensors package wrote it", async () => {
  const expected = await json<Record<string, { shape: number[]; data: number[] }>>("types.json");
  const { tensors, metadata } = await readSafetensors(join(here, "types.safetensors"));
  expect(metadata).toEqual({ format: "pt", note: "golden" });
  expect([...tensors.keys()].sort()).toEqual(Object.keys(expected).sort());
  for (const [name, { shape, data }] of Object.entries(expected)) {
    expect(tensors.get(name)?.shape).toEqual(shape);
    expect(Array.from(tensors.get(name)!.data)).toEqual(data.map(Math.fround));
  }
});
