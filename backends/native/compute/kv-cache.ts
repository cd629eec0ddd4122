import type { ModelConfig } from "../model/model-config.ts";

/** Capacity grows in these steps: a step copies the cache once in so many tokens. */
const capacityStep = 64;

export interface CacheLayer {
  /** [rows, kvHeads, capacity, headDim] */
  readonly keys: Float32Array<ArrayBuffer>;
  readonly values: Float32Array<ArrayBuffer>;
}

/** New keys and values of one layer, [rows, kvHeads, width, headDim]. */
export interface NewTokens {
  readonly keys: Float32Array;
  readonly values: Float32Array;
}

/**
 * Keys and values of `slots` sequences. Every sequence has a row; the rows of those that run
 * together are moved to the front, so that what a graph reads is one contiguous piece.
 */
export interface KvCache {
  lengthOf(slot: number): number;
  truncate(slot: number, length: number): void;
  /** Puts these slots in the first rows and gives the slot of each of those rows. */
  moveToFront(slots: readonly number[]): readonly number[];
  /** Tokens that each row has room for. */
  capacity(): number;
  /** The first `rowCount` rows of a layer, without copying. */
  layer(index: number, rowCount: number): CacheLayer;
  /** Appends to row r the first counts[r] of `width` new tokens, in every layer. */
  append(counts: readonly number[], width: number, layers: readonly NewTokens[]): void;
}

const roundUp = (length: number): number =>
  Math.max(capacityStep, Math.ceil(length / capacityStep) * capacityStep);

/** Copies `rows` rows of `heads` pieces between capacities, `length(row)` tokens each. */
function copyRows(
  from: { data: Float32Array; capacity: number },
  to: { data: Float32Array; capacity: number },
  heads: number,
  headDim: number,
  lengths: readonly number[],
): void {
  for (const [row, length] of lengths.entries()) {
    for (let head = 0; head < heads; head++) {
      const piece = row * heads + head;
      const start = piece * from.capacity * headDim;
      to.data.set(
        from.data.subarray(start, start + length * headDim),
        piece * to.capacity * headDim,
      );
    }
  }
}

export function createKvCache(config: ModelConfig, slots: number): KvCache {
  const { kvHeadCount: heads, headDim, layerCount } = config;
  const slotAtRow = Array.from({ length: slots }, (_, row) => row);
  const rowOfSlot = Array.from({ length: slots }, (_, slot) => slot);
  const lengths = Array.from({ length: slots }, () => 0);
  let capacity = capacityStep;
  const allocate = (tokens: number): Float32Array<ArrayBuffer> =>
    new Float32Array(slots * heads * tokens * headDim);
  const arrays = Array.from({ length: 2 * layerCount }, () => allocate(capacity));
  const rowLengths = (): number[] => slotAtRow.map((slot) => lengths[slot] as number);

  const resize = (tokens: number): void => {
    const wanted = roundUp(tokens);
    if (wanted === capacity) return;
    const counts = rowLengths();
    for (const [i, data] of arrays.entries()) {
      const grown = allocate(wanted);
      copyRows({ data, capacity }, { data: grown, capacity: wanted }, heads, headDim, counts);
      arrays[i] = grown;
    }
    capacity = wanted;
  };
  const swapRows = (a: number, b: number): void => {
    const size = heads * capacity * headDim;
    for (const data of arrays) {
      const rowA = data.slice(a * size, (a + 1) * size);
      data.copyWithin(a * size, b * size, (b + 1) * size);
      data.set(rowA, b * size);
    }
    const slotA = slotAtRow[a] as number;
    const slotB = slotAtRow[b] as number;
    slotAtRow[a] = slotB;
    slotAtRow[b] = slotA;
    rowOfSlot[slotA] = b;
    rowOfSlot[slotB] = a;
  };
  const appendRow = (row: number, count: number, width: number, from: Float32Array, i: number) => {
    const to = arrays[i] as Float32Array;
    const length = lengths[slotAtRow[row] as number] as number;
    for (let head = 0; head < heads; head++) {
      const piece = row * heads + head;
      const start = piece * width * headDim;
      to.set(from.subarray(start, start + count * headDim), (piece * capacity + length) * headDim);
    }
  };

  return {
    lengthOf: (slot) => lengths[slot] as number,
    truncate(slot, length) {
      const old = lengths[slot] as number;
      lengths[slot] = length;
      // Masked entries are multiplied by 0; a NaN left behind would survive that.
      for (const data of arrays) {
        for (let head = 0; head < heads; head++) {
          const start = ((rowOfSlot[slot] as number) * heads + head) * capacity;
          data.fill(0, (start + length) * headDim, (start + old) * headDim);
        }
      }
      const longest = Math.max(0, ...lengths);
      if (roundUp(longest) * 2 <= capacity) resize(longest);
    },
    moveToFront(wanted) {
      const isWanted = new Set(wanted);
      let row = 0;
      for (const slot of wanted) {
        if ((rowOfSlot[slot] as number) < wanted.length) continue;
        while (isWanted.has(slotAtRow[row] as number)) row += 1;
        swapRows(row, rowOfSlot[slot] as number);
      }
      return slotAtRow.slice(0, wanted.length);
    },
    capacity: () => capacity,
    layer(index, rowCount) {
      const size = rowCount * heads * capacity * headDim;
      return {
        keys: (arrays[2 * index] as Float32Array<ArrayBuffer>).subarray(0, size),
        values: (arrays[2 * index + 1] as Float32Array<ArrayBuffer>).subarray(0, size),
      };
    },
    append(counts, width, layers) {
      const after = counts.map((count, row) => count + (lengths[slotAtRow[row] as number] ?? 0));
      const longest = Math.max(0, ...after);
      if (longest > capacity) resize(longest);
      for (const [layer, fresh] of layers.entries()) {
        for (const [row, count] of counts.entries()) {
          appendRow(row, count, width, fresh.keys, 2 * layer);
          appendRow(row, count, width, fresh.values, 2 * layer + 1);
        }
      }
      for (const [row, length] of after.entries()) lengths[slotAtRow[row] as number] = length;
    },
  };
}
