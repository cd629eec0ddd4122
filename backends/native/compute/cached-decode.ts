import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import type { DecodeSession } from "./compute.ts";
import {
  checkDecodeItems,
  type DecodeBounds,
  type DecodeGroup,
  type DecodeItem,
  type DecodeLimits,
  planDecode,
} from "./decode-plan.ts";
import type { DecodeStep, Kernels } from "./kernels.ts";
import { createKvCache, type KvCache } from "./kv-cache.ts";
import type { SerialQueue } from "./serial-queue.ts";

const limits: DecodeLimits = { maxPieceTokens: 512, maxGroupTokens: 2048 };

/** Moves the group's sequences to the front of the cache; its pieces in the order of their rows. */
function arrange(group: DecodeGroup, cache: KvCache): DecodeGroup {
  const bySlot = new Map(group.map((piece) => [piece.slot, piece]));
  return cache.moveToFront([...bySlot.keys()]).flatMap((slot) => bySlot.get(slot) ?? []);
}

function buildStep(
  pieces: DecodeGroup,
  cache: KvCache,
  layerCount: number,
  stepIndex: number,
): DecodeStep {
  const count = pieces.length;
  const width = Math.max(...pieces.map((piece) => piece.tokenIds.length));
  const pastWidth = pieces.every((piece) => piece.isFresh) ? 0 : cache.capacity();
  const tokenIds = new Int32Array(count * width);
  const positions = new Int32Array(count * width);
  const lastIndexes = new Int32Array(count);
  const pastMask = new Float32Array(count * pastWidth);
  for (const [row, piece] of pieces.entries()) {
    const length = cache.lengthOf(piece.slot);
    tokenIds.set(piece.tokenIds, row * width);
    for (let t = 0; t < piece.tokenIds.length; t++) positions[row * width + t] = length + t;
    lastIndexes[row] = row * width + piece.tokenIds.length - 1;
    pastMask.fill(Number.NEGATIVE_INFINITY, row * pastWidth + length, (row + 1) * pastWidth);
  }
  const past = Array.from({ length: layerCount }, (_, layer) =>
    cache.layer(layer, pastWidth === 0 ? 0 : count),
  );
  return { count, width, pastWidth, tokenIds, positions, lastIndexes, pastMask, past, stepIndex };
}

/** A decode session on a cache in this process's memory, which the kernels only read. */
export function openCachedDecode(
  config: ModelConfig,
  kernels: Kernels,
  bounds: DecodeBounds,
  serial: SerialQueue,
): DecodeSession {
  let cache: KvCache | undefined = createKvCache(config, bounds.slots);
  const opened = (): KvCache => {
    if (cache !== undefined) return cache;
    throw new OutriggerError("decode-closed", "the decode session is closed", {
      origin: "backend",
    });
  };
  const runGroup = async (
    group: DecodeGroup,
    stepIndex: number,
    results: Float32Array[],
  ): Promise<void> => {
    const rows = opened();
    const pieces = arrange(group, rows);
    const step = buildStep(pieces, rows, config.layerCount, stepIndex);
    const { logits, layers } = await kernels.decodeStep(step);
    const counts = pieces.map((piece) => piece.tokenIds.length);
    rows.append(counts, step.width, layers);
    for (const [row, piece] of pieces.entries()) {
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
      await runGroup(group, index, results);
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
