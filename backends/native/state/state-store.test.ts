import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { writeSmallModel } from "../../../test/contract/trainer-backend-model.ts";
import { type LoadedModel, loadModel } from "../model/load-model.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import { openStateStore, type StateStore, type TrainingState } from "./state-store.ts";

let directory: string;
let model: LoadedModel;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "state-store-"));
  await writeSmallModel(join(directory, "model"));
  model = await loadModel(join(directory, "model"));
});
afterAll(() => rm(directory, { recursive: true }));

const filled = (value: number): NamedWeights =>
  new Map(
    Array.from(model.weights, ([name, { shape, data }]) => [
      name,
      { shape, data: new Float32Array(data.length).fill(value) },
    ]),
  );

function stateAt(version: number): TrainingState {
  return {
    record: { format: "outrigger-checkpoint/1", version, updates: [] },
    weights: filled(version),
    optimizer: {
      stepCount: version,
      firstMoments: filled(version + 0.25),
      secondMoments: filled(version + 0.5),
    },
  };
}

const names = async (path: string): Promise<string[]> => (await readdir(path)).sort();
let stores = 0;
const fresh = async (): Promise<StateStore> =>
  openStateStore(join(directory, `state-${stores++}`), model);

/** What a state holds, without the maps. */
const summary = (state: TrainingState | undefined) =>
  state === undefined
    ? undefined
    : {
        version: state.record.version,
        stepCount: state.optimizer.stepCount,
        values: [state.weights, state.optimizer.firstMoments, state.optimizer.secondMoments].map(
          (w) => w.get("model.norm.weight")!.data[0],
        ),
      };

const expected = (version: number) => ({
  version,
  stepCount: version,
  values: [version, version + 0.25, version + 0.5],
});

describe("state store", () => {
  it("gives back the last committed state, also to the next process", async () => {
    const store = await fresh();
    expect(await store.load()).toBeUndefined();
    for (const version of [0, 1, 2]) await store.commit(stateAt(version));
    expect(summary(await store.load())).toEqual(expected(2));
    const again = await openStateStore(store.directory, model);
    expect(summary(await again.load())).toEqual(expected(2));
    expect(await names(join(store.directory, "versions"))).toEqual([
      expect.stringMatching(/^v1-/) as string,
      expect.stringMatching(/^v2-/) as string,
    ]);
  });

  it("is not disturbed by what a kill leaves half written", async () => {
    const store = await fresh();
    await store.commit(stateAt(1));
    const half = join(store.directory, "versions", "v2-half");
    await mkdir(half);
    await writeFile(join(half, "model.safetensors.0123.tmp"), "half");
    await writeFile(join(store.directory, "current.abcd.tmp"), "");
    expect(summary(await store.load())).toEqual(expected(1));
    await store.commit(stateAt(2));
    expect(summary(await store.load())).toEqual(expected(2));
    expect(await names(join(store.directory, "versions"))).not.toContain("v2-half");
  });

  it("keeps the old state when the new one cannot be written", async () => {
    const store = await fresh();
    await store.commit(stateAt(1));
    const before = await names(join(store.directory, "versions"));
    const broken = { ...stateAt(2), weights: new Map([["x", undefined as never]]) };
    await expect(store.commit(broken)).rejects.toMatchObject({
      reason: "checkpoint-write-failed",
      origin: "backend",
    });
    expect(summary(await store.load())).toEqual(expected(1));
    expect(await names(join(store.directory, "versions"))).toEqual(before);
  });

  it("keeps named checkpoints whatever is committed after, and renames them at once", async () => {
    const store = await fresh();
    await expect(store.saveNamed("best")).rejects.toMatchObject({ reason: "checkpoint-missing" });
    await store.commit(stateAt(1));
    const location = await store.saveNamed("best");
    for (const version of [2, 3, 4]) await store.commit(stateAt(version));
    expect(summary(await store.loadNamed("best"))).toEqual(expected(1));
    expect((await loadModel(location)).weights.get("model.norm.weight")?.data[0]).toBe(1);
    await store.saveNamed("best");
    expect(summary(await store.loadNamed("best"))).toEqual(expected(4));
    expect(await names(join(store.directory, "checkpoints"))).toHaveLength(2);
    expect(await readFile(join(location, "tokenizer.json"))).toEqual(
      Buffer.from(model.companionFiles.get("tokenizer.json")!),
    );
  });

  it.each(["", ".", "..", "../x", "a/b", ".hidden", "x".repeat(200)])(
    "refuses the checkpoint name %j",
    async (name) => {
      const store = await fresh();
      await store.commit(stateAt(1));
      await expect(store.saveNamed(name)).rejects.toMatchObject({
        reason: "checkpoint-name-invalid",
      });
    },
  );
});
