import { OutriggerError } from "../outrigger-error.ts";

/** One fixed shape of a backend's training graph: `rowCount` rows of `length` tokens. */
export interface BatchShape {
  readonly rowCount: number;
  readonly length: number;
}

/**
 * One micro-batch. `rowIndexes` has one entry per row of the shape: an index into the rows that
 * were packed, or -1 for a padding row, whose every token has weight 0.
 *
 * Example: `{ shape: { rowCount: 4, length: 64 }, rowIndexes: [7, 2, 5, -1] }`.
 */
export interface PackedBatch {
  readonly shape: BatchShape;
  readonly rowIndexes: readonly number[];
}

/**
 * The shapes of a token budget: for each length as many rows as fit into `tokenBudget` tokens, and
 * halves of that down to one row, so that a remainder needs little padding.
 */
export function shapesForBudget(tokenBudget: number, lengths: readonly number[]): BatchShape[] {
  return lengths.flatMap((length) => {
    const shapes: BatchShape[] = [];
    for (let n = Math.floor(tokenBudget / length); n >= 1; n = Math.floor(n / 2)) {
      shapes.push({ rowCount: n, length });
    }
    return shapes;
  });
}

/**
 * Packs rows into fixed shapes with the fewest tokens computed, padding included. Rows are taken
 * longest first; every row is in exactly one micro-batch, none is dropped or cut to fit. Weights
 * travel with the tokens, so the split does not change the gradient.
 *
 * Exact over all ways to cut the sorted rows into runs: O(rows · shapes).
 *
 * @param rowLengths tokens of each row
 * @throws OutriggerError `row-exceeds-shapes` (user) when a row is longer than every shape: what to
 * do with over-length rows is decided before packing, by the assembly's explicit policy
 */
export function packBatch(
  rowLengths: readonly number[],
  shapes: readonly BatchShape[],
): PackedBatch[] {
  assertFits(rowLengths, shapes);
  const order = rowLengths.map((_, index) => index);
  order.sort((a, b) => (rowLengths[b] ?? 0) - (rowLengths[a] ?? 0) || a - b);
  const choices = cheapestShapes(
    order.map((index) => rowLengths[index] ?? 0),
    shapes,
  );
  const batches: PackedBatch[] = [];
  for (let position = 0; position < order.length; ) {
    const shape = choices[position] as BatchShape;
    const rowIndexes = Array.from(
      { length: shape.rowCount },
      (_, offset) => order[position + offset] ?? -1,
    );
    batches.push({ shape, rowIndexes });
    position += shape.rowCount;
  }
  return batches;
}

/** For each position of the sorted rows the shape that starts there at the least total cost. */
function cheapestShapes(
  sortedLengths: readonly number[],
  shapes: readonly BatchShape[],
): readonly (BatchShape | undefined)[] {
  const { length: rowCount } = sortedLengths;
  const costs = new Float64Array(rowCount + 1);
  const choices: (BatchShape | undefined)[] = Array.from({ length: rowCount }, () => undefined);
  for (let position = rowCount - 1; position >= 0; position -= 1) {
    let least = Number.POSITIVE_INFINITY;
    for (const shape of shapes) {
      if (shape.length < (sortedLengths[position] ?? 0)) continue;
      const next = Math.min(rowCount, position + shape.rowCount);
      const cost = shape.rowCount * shape.length + (costs[next] ?? 0);
      if (cost >= least) continue;
      least = cost;
      choices[position] = shape;
    }
    costs[position] = least;
  }
  return choices;
}

function assertFits(rowLengths: readonly number[], shapes: readonly BatchShape[]): void {
  const invalid = shapes.find(
    ({ rowCount, length }) => !(Number.isInteger(rowCount) && rowCount > 0 && length > 0),
  );
  if (invalid !== undefined) {
    throw new OutriggerError("bad-batch-shape", `batch shape ${JSON.stringify(invalid)} is empty`, {
      origin: "backend",
      hint: "A shape needs at least one row and one token.",
    });
  }
  const longest = shapes.reduce((most, shape) => Math.max(most, shape.length), 0);
  for (const [index, length] of rowLengths.entries()) {
    if (length <= longest) continue;
    throw new OutriggerError(
      "row-exceeds-shapes",
      `row ${index} has ${length} tokens, the backend's longest shape has ${longest}`,
      {
        origin: "user",
        hint: "Lower the experiment's length limit or give the backend a longer shape.",
      },
    );
  }
}
