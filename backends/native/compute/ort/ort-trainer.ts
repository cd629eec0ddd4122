import ort from "onnxruntime-node";
import type { ModelConfig } from "../../model/model-config.ts";
import { embeddingName } from "../../model/parameter-shapes.ts";
import { causalMask } from "../causal-mask.ts";
import type { Kernels } from "../kernels.ts";
import { addEmbeddingGradient, addInto, type ParameterStore } from "../parameter-store.ts";
import { type RopeTable, ropeTable } from "../rope-table.ts";
import type { PaddedBatch } from "../row-batches.ts";
import { backwardGraph, gradientOutput } from "./backward-graph.ts";
import { forwardGraph } from "./forward-graph.ts";
import { type OrtSession, type OrtSessionOptions, openOrtSession } from "./ort-session.ts";
import { savedShapes } from "./saved-shapes.ts";
import { createScratchPool, type ScratchPool } from "./scratch-pool.ts";
import { type Feeds, f32, i32, parameterFeeds } from "./tensors.ts";

/** Opens each graph's session when it is first needed. */
function createSessions(config: ModelConfig, options: OrtSessionOptions) {
  const models = {
    forward: () => forwardGraph(config, false),
    saving: () => forwardGraph(config, true),
    backward: () => backwardGraph(config),
  };
  const opened = new Map<string, Promise<OrtSession>>();
  return {
    get(kind: keyof typeof models): Promise<OrtSession> {
      const session = opened.get(kind) ?? openOrtSession(models[kind](), options);
      opened.set(kind, session);
      return session;
    },
    async close(): Promise<void> {
      const sessions = await Promise.allSettled(opened.values());
      opened.clear();
      for (const s of sessions) if (s.status === "fulfilled") await s.value.close();
    },
  };
}

/** Feeds that depend on the padded length only, kept for the lengths in use. */
function createLengthFeeds(config: ModelConfig) {
  const group = config.headCount / config.kvHeadCount;
  const masks = new Map<number, ort.Tensor>();
  let table: RopeTable = ropeTable(config, 64);
  const positions = new ort.Tensor("int64", BigInt64Array.of(0n), [1]);
  return (length: number, direction: "forward" | "backward"): Feeds => {
    if (table.length < length) table = ropeTable(config, Math.max(length, 2 * table.length));
    let mask = masks.get(length);
    if (mask === undefined) {
      if (masks.size >= 64) masks.clear();
      mask = f32(causalMask(group, length), [group * length, length]);
      masks.set(length, mask);
    }
    const shape = [table.length, config.headDim / 2];
    const sin = direction === "forward" ? table.sin : table.negatedSin;
    const shared = { positions, cos: f32(table.cos, shape), sin: f32(sin, shape) };
    return direction === "forward" ? { ...shared, causal_mask: mask } : shared;
  };
}

const sizeOf = (shape: readonly number[]): number => shape.reduce((size, n) => size * n, 1);

const scratch = (pool: ScratchPool, name: string, shape: readonly number[]): ort.Tensor =>
  f32(pool.take(name, sizeOf(shape)), shape);

function addGradients(outputs: Feeds, tokenIds: Int32Array, gradients: ParameterStore): void {
  for (const [name, view] of gradients.views) {
    const part = outputs[gradientOutput(name)];
    if (part !== undefined) addInto(view.data, part.data as Float32Array);
    if (name !== embeddingName) continue;
    const dx = outputs["embedded_gradient"] as ort.Tensor;
    addEmbeddingGradient(view.data, tokenIds, dx.data as Float32Array);
  }
}

/** The training half of `Kernels`: sessions and memory over one set of parameters. */
export function createOrtTrainer(
  config: ModelConfig,
  store: ParameterStore,
  options: OrtSessionOptions,
): Pick<Kernels, "forward" | "openPass" | "passFloats" | "close"> {
  const sessions = createSessions(config, options);
  const weights = parameterFeeds(store);
  const lengthFeeds = createLengthFeeds(config);
  const sharedPool = createScratchPool();
  const freePools: ScratchPool[] = [];
  const saved = savedShapes(config);

  const batchFeeds = (batch: PaddedBatch, temperature: number): Feeds => ({
    ...weights,
    token_ids: i32(batch.tokenIds, [batch.rowCount, batch.length]),
    predict_indexes: i32(batch.predictIndexes, [batch.targets.length]),
    targets: i32(batch.targets, [batch.targets.length, 1]),
    inverse_temperature: f32(Float32Array.of(1 / temperature), []),
  });
  const backwardOutputs = (tokenCount: number): Feeds => {
    const outputs: Feeds = {
      embedded_gradient: scratch(sharedPool, "embedded_gradient", [tokenCount, config.hiddenSize]),
    };
    for (const [name, view] of store.views) {
      if (name === embeddingName && !config.tieWordEmbeddings) continue;
      outputs[gradientOutput(name)] = scratch(sharedPool, gradientOutput(name), view.shape);
    }
    return outputs;
  };

  return {
    async forward(batch, temperature) {
      const logprobs = scratch(sharedPool, "logprobs", [batch.targets.length, 1]);
      const session = await sessions.get("forward");
      await session.run(
        { ...batchFeeds(batch, temperature), ...lengthFeeds(batch.length, "forward") },
        { logprobs },
      );
      return logprobs.data as Float32Array;
    },
    async openPass(batch, temperature) {
      const M = batch.targets.length;
      const sizes = { B: batch.rowCount, T: batch.length, M };
      const pool = freePools.pop() ?? createScratchPool();
      const feeds = batchFeeds(batch, temperature);
      const kept: Feeds = {};
      for (const s of saved) kept[s.name] = scratch(pool, s.name, s.shape(sizes));
      const logprobs = scratch(pool, "logprobs", [M, 1]);
      const session = await sessions.get("saving");
      const lengthBound = lengthFeeds(batch.length, "forward");
      await session.run({ ...feeds, ...lengthBound }, { ...kept, logprobs });
      return {
        logprobs: logprobs.data as Float32Array,
        async backward(logprobGradient, gradients) {
          const outputs = backwardOutputs(batch.tokenIds.length);
          const backward = await sessions.get("backward");
          await backward.run(
            {
              ...feeds,
              ...kept,
              ...lengthFeeds(batch.length, "backward"),
              logprob_gradient: f32(logprobGradient, [M, 1]),
            },
            outputs,
          );
          addGradients(outputs, batch.tokenIds, gradients);
        },
        release: () => {
          freePools.push(pool);
        },
      };
    },
    passFloats(B, T) {
      return saved.reduce((sum, s) => sum + sizeOf(s.shape({ B, T, M: B * T })), 0);
    },
    close: () => sessions.close(),
  };
}
