import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { selectCompute } from "../../backends/native/compute/select-compute.ts";
import { readSafetensors, writeSafetensors } from "../../backends/native/model/safetensors.ts";
import { nativeConfigSchema } from "../../backends/native/native-config.ts";
import { startNativeProcess } from "../../backends/native/native-process.ts";
import { openLog } from "../../runtime/log.ts";
import { writeSmallModel } from "./trainer-backend-model.ts";

let directory: string;
let good: string;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "native-start-"));
  good = join(directory, "model");
  await writeSmallModel(good);
});
afterAll(() => rm(directory, { recursive: true }));

async function start(config: Readonly<Record<string, unknown>>): Promise<void> {
  const native = await startNativeProcess({
    config: nativeConfigSchema.parse({
      model: good,
      state: join(directory, "state"),
      compute: "ort-cpu",
      threads: 1,
      slots: 2,
      ...config,
    }),
    log: openLog({ level: "silent", process: "test" }),
    openCompute: (model, weights, { compute }) =>
      selectCompute(compute, model.config, weights, { threads: 1 }),
  });
  await native.close(0);
}

let copies = 0;
async function copyWith(change: (path: string) => Promise<unknown>): Promise<string> {
  const path = join(directory, `copy-${copies++}`);
  await cp(good, path, { recursive: true });
  await change(path);
  return path;
}

const withConfig = (change: Record<string, unknown>) =>
  copyWith(async (path) => {
    const file = join(path, "config.json");
    const json = JSON.parse(await readFile(file, "utf8")) as object;
    await writeFile(file, JSON.stringify({ ...json, ...change }));
  });

const without = (name: string) => copyWith((path) => rm(join(path, name)));
const withFile = (name: string, text: string) =>
  copyWith((path) => writeFile(join(path, name), text));

const norm = "model.norm.weight";
const withWeights = (change: (data: Float32Array) => Float32Array | undefined, name = norm) =>
  copyWith(async (path) => {
    const file = join(path, "model.safetensors");
    const tensors = new Map((await readSafetensors(file)).tensors);
    const data = change(tensors.get(norm)!.data);
    tensors.delete(norm);
    if (data !== undefined) tensors.set(name, { shape: [data.length], data });
    await writeSafetensors(file, tensors);
  });

describe("starting the native backend", () => {
  it.each<[string, () => Promise<string>, string, RegExp]>([
    [
      "no directory",
      async () => join(directory, "nowhere"),
      "model-file-missing",
      /nowhere does not exist/,
    ],
    [
      "no config.json",
      () => without("config.json"),
      "model-file-missing",
      /config\.json does not exist/,
    ],
    [
      "no tokenizer",
      () => without("tokenizer.json"),
      "model-file-missing",
      /tokenizer\.json does not exist/,
    ],
    ["no weights", () => without("model.safetensors"), "model-file-missing", /model\.safetensors/],
    [
      "a broken config.json",
      () => withFile("config.json", "{"),
      "model-file-invalid",
      /config\.json is not JSON/,
    ],
    [
      "a broken tokenizer",
      () => withFile("tokenizer.json", "{}"),
      "tokenizer-invalid",
      /tokenizer\.json/,
    ],
    [
      "a broken template",
      () => withFile("chat_template.jinja", "{% if %}"),
      "chat-template-invalid",
      /chat_template\.jinja/,
    ],
    [
      "broken weights",
      () => withFile("model.safetensors", "x"),
      "safetensors-invalid",
      /model\.safetensors: 1 bytes/,
    ],
    [
      "another architecture",
      () => withConfig({ model_type: "mixtral" }),
      "model-config-invalid",
      /model_type/,
    ],
    [
      "another tokenizer",
      () => withConfig({ vocab_size: 200 }),
      "tokenizer-mismatch",
      /ids up to 260.*vocab_size is 200/,
    ],
    [
      "weights of other sizes",
      () => withConfig({ intermediate_size: 48 }),
      "model-weights-mismatch",
      /mlp\.gate_proj\.weight has shape \[64, 32\], config\.json asks for \[48, 32\]/,
    ],
    [
      "a tensor missing",
      () => withWeights(() => undefined),
      "model-weights-mismatch",
      /tensor model\.norm\.weight \[32\] is missing/,
    ],
    [
      "a tensor unknown",
      () => withWeights((d) => d, "model.extra.weight"),
      "model-weights-mismatch",
      /model\.extra\.weight has no place/,
    ],
    [
      "a weight that is no number",
      () => withWeights((d) => d.map((v, i) => (i === 3 ? Number.NaN : v))),
      "model-weights-mismatch",
      /model\.norm\.weight holds NaN at index 3/,
    ],
    [
      "no end token",
      () =>
        copyWith(async (path) => {
          await writeFile(join(path, "tokenizer_config.json"), "{}");
          const file = join(path, "config.json");
          const { eos_token_id: _eos, ...rest } = JSON.parse(
            await readFile(file, "utf8"),
          ) as Record<string, unknown>;
          await writeFile(file, JSON.stringify(rest));
        }),
      "model-file-invalid",
      /end-of-text/,
    ],
  ])("refuses a model with %s", async (_what, make, reason, message) => {
    const error: unknown = await start({ model: await make() }).catch((e: unknown) => e);
    expect(error).toMatchObject({
      reason,
      message: expect.stringMatching(message) as string,
      origin: "user",
    });
    expect((error as { hint?: string }).hint).toBeTruthy();
  });

  it.each<[Record<string, unknown>, RegExp]>([
    [{ host: "0.0.0.0" }, /no apiKey is set/],
    [{ compute: "abacus" }, /abacus/],
    [{ maxLength: 100_000 }, /max_position_embeddings 512/],
  ])("refuses %j", async (config, message) => {
    await expect(start(config)).rejects.toThrow(message);
  });

  it.each(["policyPort", "grpcPort"])("names a %s that is in use", async (name) => {
    const taken = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => taken.once("listening", resolve));
    const { port } = taken.address() as AddressInfo;
    await expect(start({ [name]: port })).rejects.toThrow(`cannot listen on 127.0.0.1:${port}`);
    taken.close();
  });

  it("refuses a state directory of another model, and a damaged one", async () => {
    const state = join(directory, "state-of-another");
    await start({ state });
    const other = join(directory, "other-model");
    await writeSmallModel(other, { config: { hidden_size: 48 } });
    await expect(start({ model: other, state })).rejects.toMatchObject({
      reason: "model-weights-mismatch",
    });
    await writeFile(join(state, "current", "outrigger.json"), "{");
    await expect(start({ state })).rejects.toMatchObject({ reason: "checkpoint-invalid" });
  });
});
