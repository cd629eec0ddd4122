import type { ModelConfig } from "../../model/model-config.ts";
import { causalMask } from "../causal-mask.ts";
import type { DecodeStep, DecodeStepResult, Kernels } from "../kernels.ts";
import type { ParameterStore } from "../parameter-store.ts";
import { type RopeTable, ropeTable } from "../rope-table.ts";
import { decodeGraph } from "./decode-graph.ts";
import { type OrtSessionOptions, openOrtSession } from "./ort-session.ts";
import { createScratchPool, type ScratchPool } from "./scratch-pool.ts";
import { type Feeds, f32, i32, i64, parameterFeeds } from "./tensors.ts";

function stepFeeds(config: ModelConfig, step: DecodeStep): Feeds {
  const { count, width, pastWidth } = step;
  const grouped = config.headCount / config.kvHeadCount;
  const cacheShape = [count, config.kvHeadCount, pastWidth, config.headDim];
  const feeds: Feeds = {
    token_ids: i32(step.tokenIds, [count, width]),
    positions: i64(BigInt64Array.from(step.positions, BigInt), [count, width]),
    last_indexes: i32(step.lastIndexes, [count]),
    past_mask: f32(step.pastMask, [count, 1, 1, pastWidth]),
    new_mask: f32(causalMask(grouped, width), [grouped * width, width]),
    split_sizes: i64(BigInt64Array.of(BigInt(pastWidth), BigInt(width)), [2]),
  };
  for (const [layer, { keys, values }] of step.past.entries()) {
    feeds[`past_key.${layer}`] = f32(keys, cacheShape);
    feeds[`past_value.${layer}`] = f32(values, cacheShape);
  }
  return feeds;
}

function outputTensors(config: ModelConfig, step: DecodeStep, pool: ScratchPool): Feeds {
  const { count, width } = step;
  const shape = [count, config.kvHeadCount, width, config.headDim];
  const size = count * config.kvHeadCount * width * config.headDim;
  const logits = pool.take(`logits.${step.stepIndex}`, count * config.vocabSize);
  const outputs: Feeds = { logits: f32(logits, [count, config.vocabSize]) };
  for (let layer = 0; layer < config.layerCount; layer++) {
    for (const name of [`new_key.${layer}`, `new_value.${layer}`]) {
      outputs[name] = f32(pool.take(name, size), shape);
    }
  }
  return outputs;
}

/** The decoding half of `Kernels`. */
export async function openOrtDecoder(
  config: ModelConfig,
  store: ParameterStore,
  options: OrtSessionOptions,
): Promise<Pick<Kernels, "decodeStep" | "close">> {
  const session = await openOrtSession(decodeGraph(config), options);
  const weights = parameterFeeds(store);
  const pool = createScratchPool();
  let table: RopeTable = ropeTable(config, 64);

  return {
    async decodeStep(step): Promise<DecodeStepResult> {
      const needed = step.positions.reduce((a, b) => Math.max(a, b), 0) + 1;
      if (needed > table.length) table = ropeTable(config, Math.max(needed, 2 * table.length));
      const tableShape = [table.length, config.headDim / 2];
      const outputs = outputTensors(config, step, pool);
      await session.run(
        {
          ...weights,
          ...stepFeeds(config, step),
          cos: f32(table.cos, tableShape),
          sin: f32(table.sin, tableShape),
        },
        outputs,
      );
      const floats = (name: string): Float32Array => outputs[name]?.data as Float32Array;
      return {
        logits: floats("logits"),
        layers: step.past.map((_, layer) => ({
          keys: floats(`new_key.${layer}`),
          values: floats(`new_value.${layer}`),
        })),
      };
    },
    close: () => session.close(),
  };
}
