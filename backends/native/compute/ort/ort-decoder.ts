import ort from "onnxruntime-node";
import { OutriggerError } from "../../../../core/outrigger-error.ts";
import type { ModelConfig } from "../../model/model-config.ts";
import type { DecodeSession } from "../compute.ts";
import {
  checkDecodeBounds,
  checkDecodeItems,
  type DecodeBounds,
  type DecodeGroup,
  type DecodeItem,
  type DecodeLimits,
  planDecode,
} from "../decode-plan.ts";
import { createKvCache, type KvCache } from "../kv-cache.ts";
import type { ParameterStore } from "../parameter-store.ts";
import { ropeTable } from "../rope-table.ts";
import type { SerialQueue } from "../serial-queue.ts";
import { causalMask } from "./causal-mask.ts";
import { decodeGraph } from "./decode-graph.ts";
import { type OrtSession, type OrtSessionOptions, openOrtSession } from "./ort-session.ts";
import { createScratchPool, type ScratchPool } from "./scratch-pool.ts";
import { type Feeds, f32, i32, i64, parameterFeeds } from "./tensors.ts";

const limits: DecodeLimits = { maxPieceTokens: 512, maxGroupTokens: 2048 };

/** Sequences of one run, in the order of their cache rows. */
interface ArrangedGroup {
  readonly pieces: DecodeGroup;
  /** Longest piece. */
  readonly width: number;
  /** Cached tokens that the graph reads; 0 when every sequence is fresh. */
  readonly pastWidth: number;
}

function arrange(group: DecodeGroup, cache: KvCache): ArrangedGroup {
  const bySlot = new Map(group.map((piece) => [piece.slot, piece]));
  const pieces = cache.moveToFront([...bySlot.keys()]).flatMap((slot) => bySlot.get(slot) ?? []);
  return {
    pieces,
    width: Math.max(...pieces.map((piece) => piece.tokenIds.length)),
    pastWidth: pieces.every((piece) => piece.isFresh) ? 0 : cache.capacity(),
  };
}

function tokenFeeds(config: ModelConfig, group: ArrangedGroup, cache: KvCache): Feeds {
  const { pieces, width, pastWidth } = group;
  const count = pieces.length;
  const tokenIds = new Int32Array(count * width);
  const positions = new BigInt64Array(count * width);
  const lastIndexes = new Int32Array(count);
  const pastMask = new Float32Array(count * pastWidth);
  for (const [row, piece] of pieces.entries()) {
    const length = cache.lengthOf(piece.slot);
    tokenIds.set(piece.tokenIds, row * width);
    for (let t = 0; t < piece.tokenIds.length; t++) positions[row * width + t] = BigInt(length + t);
    lastIndexes[row] = row * width + piece.tokenIds.length - 1;
    pastMask.fill(Number.NEGATIVE_INFINITY, row * pastWidth + length, (row + 1) * pastWidth);
  }
  const grouped = config.headCount / config.kvHeadCount;
  return {
    token_ids: i32(tokenIds, [count, width]),
    positions: i64(positions, [count, width]),
    last_indexes: i32(lastIndexes, [count]),
    past_mask: f32(pastMask, [count, 1, 1, pastWidth]),
    new_mask: f32(causalMask(grouped, width), [grouped * width, width]),
    split_sizes: i64(BigInt64Array.of(BigInt(pastWidth), BigInt(width)), [2]),
  };
}

function cacheFeeds(config: ModelConfig, group: ArrangedGroup, cache: KvCache): Feeds {
  const { pieces, pastWidth } = group;
  const shape = [pieces.length, config.kvHeadCount, pastWidth, config.headDim];
  const feeds: Feeds = {};
  for (let layer = 0; layer < config.layerCount; layer++) {
    const { keys, values } = cache.layer(layer, pastWidth === 0 ? 0 : pieces.length);
    feeds[`past_key.${layer}`] = f32(keys, shape);
    feeds[`past_value.${layer}`] = f32(values, shape);
  }
  return feeds;
}

/** Output tensors of a group's run; `logitsName` keeps groups of one call apart. */
function outputTensors(
  config: ModelConfig,
  group: ArrangedGroup,
  pool: ScratchPool,
  logitsName: string,
): Feeds {
  const count = group.pieces.length;
  const shape = [count, config.kvHeadCount, group.width, config.headDim];
  const size = count * config.kvHeadCount * group.width * config.headDim;
  const outputs: Feeds = {
    logits: f32(pool.take(logitsName, count * config.vocabSize), [count, config.vocabSize]),
  };
  for (let layer = 0; layer < config.layerCount; layer++) {
    for (const name of [`new_key.${layer}`, `new_value.${layer}`]) {
      outputs[name] = f32(pool.take(name, size), shape);
    }
  }
  return outputs;
}

const floats = (tensor: ort.Tensor | undefined): Float32Array => tensor?.data as Float32Array;

/** One session of the decode graph; every decode session runs on it. */
export interface OrtDecoder {
  open(bounds: DecodeBounds, serial: SerialQueue): DecodeSession;
  close(): Promise<void>;
}

export async function openOrtDecoder(
  config: ModelConfig,
  store: ParameterStore,
  options: OrtSessionOptions,
): Promise<OrtDecoder> {
  const session = await openOrtSession(decodeGraph(config), options);
  const weights = parameterFeeds(store);
  return {
    open(bounds, serial) {
      checkDecodeBounds(bounds, config);
      return createDecodeSession(config, session, weights, bounds, serial);
    },
    close: () => session.close(),
  };
}

function createDecodeSession(
  config: ModelConfig,
  session: OrtSession,
  weights: Feeds,
  bounds: DecodeBounds,
  serial: SerialQueue,
): DecodeSession {
  const pool = createScratchPool();
  let cache: KvCache | undefined = createKvCache(config, bounds.slots);
  const table = ropeTable(config, bounds.maxLength);
  const tableShape = [table.length, config.headDim / 2];
  const fixed = { ...weights, cos: f32(table.cos, tableShape), sin: f32(table.sin, tableShape) };

  const opened = (): KvCache => {
    if (cache === undefined) {
      throw new OutriggerError("decode-closed", "the decode session is closed", {
        origin: "backend",
      });
    }
    return cache;
  };
  const runGroup = async (
    pieces: DecodeGroup,
    logitsName: string,
    results: Float32Array[],
  ): Promise<void> => {
    const rows = opened();
    const group = arrange(pieces, rows);
    const outputs = outputTensors(config, group, pool, logitsName);
    await session.run(
      { ...fixed, ...tokenFeeds(config, group, rows), ...cacheFeeds(config, group, rows) },
      outputs,
    );
    const counts = group.pieces.map((piece) => piece.tokenIds.length);
    const layers = Array.from({ length: config.layerCount }, (_, layer) => ({
      keys: floats(outputs[`new_key.${layer}`]),
      values: floats(outputs[`new_value.${layer}`]),
    }));
    rows.append(counts, group.width, layers);
    const logits = floats(outputs["logits"]);
    for (const [row, piece] of group.pieces.entries()) {
      const start = row * config.vocabSize;
      if (piece.isLast) results[piece.itemIndex] = logits.subarray(start, start + config.vocabSize);
    }
  };
  const extend = async (items: readonly DecodeItem[]): Promise<Float32Array[]> => {
    const rows = opened();
    const lengthOf = (slot: number): number => rows.lengthOf(slot);
    checkDecodeItems(items, lengthOf, bounds, config);
    const results: Float32Array[] = [];
    for (const [index, group] of planDecode(items, lengthOf, limits).entries()) {
      await runGroup(group, `logits.${index}`, results);
    }
    return results;
  };

  return {
    extend: (items) => serial(() => extend(items)),
    truncate(slot, length) {
      const rows = opened();
      if (length < 0 || length > rows.lengthOf(slot)) {
        throw new RangeError(`slot ${slot} has ${rows.lengthOf(slot)} tokens, not ${length}`);
      }
      rows.truncate(slot, length);
    },
    lengthOf: (slot) => opened().lengthOf(slot),
    close() {
      cache = undefined;
    },
  };
}
