import { randomBytes } from "node:crypto";
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { syncDirectory } from "../../../runtime/durable-files.ts";
import type { OptimizerState } from "../../native/compute/compute.ts";
import type { LoadedModel } from "../../native/model/load-model.ts";
import type { NamedWeights } from "../../native/model/named-weights.ts";
import { readModelWeights } from "../../native/model/read-model-weights.ts";
import { saveModel } from "../../native/model/save-model.ts";
import { readOptimizerFile, writeOptimizerFile } from "../../native/state/optimizer-file.ts";
import { badInput, conflict, notFound } from "./request-error.ts";

export type WeightsKind = "weights" | "sampler_weights";

export interface SavedWeights {
  readonly path: string;
  readonly kind: WeightsKind;
  readonly name: string;
  readonly savedAtMs: number;
}

/**
 * `tinker://MODEL/weights/NAME` and `tinker://MODEL/sampler_weights/NAME` as directories of the
 * same names: Hugging Face model directories, with `optimizer.safetensors` beside the training
 * ones. A directory is there whole or not at all, and never changes.
 */
export interface WeightsStore {
  save(
    modelId: string,
    kind: WeightsKind,
    name: string,
    weights: NamedWeights,
    optimizer?: OptimizerState,
  ): Promise<string>;
  load(path: string): Promise<NamedWeights>;
  loadOptimizer(path: string): Promise<OptimizerState>;
  check(path: string): Promise<void>;
  list(modelId: string): Promise<readonly SavedWeights[]>;
  remove(path: string): Promise<void>;
}

export async function openWeightsStore(
  directory: string,
  model: LoadedModel,
): Promise<WeightsStore> {
  await mkdir(directory, { recursive: true });
  const directoryOf = (path: string): string => {
    const match =
      /^tinker:\/\/([A-Za-z0-9_-]+)\/(weights|sampler_weights)\/([A-Za-z0-9_-][A-Za-z0-9._-]*)$/.exec(
        path,
      );
    if (match === null) {
      throw badInput(`${path} is not tinker://MODEL/weights/NAME or …/sampler_weights/NAME`);
    }
    return join(directory, match[1] as string, match[2] as string, match[3] as string);
  };
  const existing = async (path: string): Promise<string> => {
    const found = directoryOf(path);
    const isThere = await stat(found).then(
      (s) => s.isDirectory(),
      () => false,
    );
    if (!isThere) throw notFound(`there are no weights at ${path}`);
    return found;
  };
  return {
    save: async (modelId, kind, name, weights, optimizer) => {
      const path = `tinker://${modelId}/${kind}/${name}`;
      const target = directoryOf(path);
      const parent = join(target, "..");
      await mkdir(parent, { recursive: true });
      const temporary = join(parent, `.${name}-${randomBytes(6).toString("hex")}`);
      await mkdir(temporary);
      try {
        await saveModel(temporary, model, weights);
        if (optimizer !== undefined) {
          await writeOptimizerFile(join(temporary, "optimizer.safetensors"), optimizer);
        }
        await rename(temporary, target);
      } catch (error) {
        await rm(temporary, { recursive: true, force: true });
        const { code } = error as NodeJS.ErrnoException;
        if (code === "ENOTEMPTY" || code === "EEXIST") {
          throw conflict(`${path} exists already`);
        }
        throw error;
      }
      await syncDirectory(parent);
      return path;
    },
    load: async (path) => readModelWeights(await existing(path), model.config),
    loadOptimizer: async (path) =>
      readOptimizerFile(join(await existing(path), "optimizer.safetensors")),
    check: async (path) => {
      await existing(path);
    },
    list: async (modelId) => {
      if (!/^[A-Za-z0-9_-]+$/.test(modelId)) throw badInput(`${modelId} is not a model id`);
      const found: SavedWeights[] = [];
      for (const kind of ["weights", "sampler_weights"] as const) {
        const folder = join(directory, modelId, kind);
        const names = await readdir(folder).catch((): string[] => []);
        for (const name of names.filter((one) => !one.startsWith("."))) {
          const { mtimeMs } = await stat(join(folder, name));
          found.push({
            path: `tinker://${modelId}/${kind}/${name}`,
            kind,
            name,
            savedAtMs: mtimeMs,
          });
        }
      }
      return found;
    },
    remove: async (path) => rm(await existing(path), { recursive: true }),
  };
}
