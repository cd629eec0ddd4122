import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";
import type { NamedWeights, Tensor } from "../model/named-weights.ts";
import { type ParameterShape, parameterShapes } from "../model/parameter-shapes.ts";

/** All parameters of a model in one array, and a view per name into it. */
export interface ParameterStore {
  readonly flat: Float32Array<ArrayBuffer>;
  readonly views: ReadonlyMap<string, Tensor>;
}

const sizeOf = (shape: readonly number[]): number => shape.reduce((size, n) => size * n, 1);

/** Zeros, laid out one parameter after the other in checkpoint order. */
export function createParameterStore(config: ModelConfig): ParameterStore {
  const shapes = parameterShapes(config);
  const total = shapes.reduce((sum, p) => sum + sizeOf(p.shape), 0);
  const flat = new Float32Array(total);
  const views = new Map<string, Tensor>();
  let offset = 0;
  for (const { name, shape } of shapes) {
    const size = sizeOf(shape);
    views.set(name, { shape, data: flat.subarray(offset, offset + size) });
    offset += size;
  }
  return { flat, views };
}

/** A copy that later updates do not reach. */
export function copyParameters(store: ParameterStore): NamedWeights {
  return new Map(
    Array.from(store.views, ([name, view]) => [
      name,
      { shape: view.shape, data: view.data.slice() },
    ]),
  );
}

const mismatch = (what: string, message: string): OutriggerError =>
  new OutriggerError("weights-mismatch", `${what}: ${message}`, {
    origin: "user",
    hint: "The weights must be those of the model that config.json describes.",
  });

function checkOne(what: string, expected: ParameterShape, given: Tensor | undefined): void {
  if (given === undefined) throw mismatch(what, `parameter ${expected.name} is missing`);
  const sameShape = given.shape.join() === expected.shape.join();
  if (!sameShape || given.data.length !== sizeOf(expected.shape)) {
    throw mismatch(
      what,
      `parameter ${expected.name} is [${given.shape.join(", ")}] with ${given.data.length} values, expected [${expected.shape.join(", ")}]`,
    );
  }
}

/**
 * Throws `weights-mismatch` unless `weights` has exactly the model's parameters. A tied model's
 * file may repeat the embedding as `lm_head.weight`; it is left out, as in Hugging Face.
 */
export function checkWeights(config: ModelConfig, weights: NamedWeights, what: string): void {
  const expected = parameterShapes(config);
  for (const parameter of expected) checkOne(what, parameter, weights.get(parameter.name));
  const known = new Set(expected.map((p) => p.name));
  for (const name of weights.keys()) {
    if (known.has(name) || (name === "lm_head.weight" && config.tieWordEmbeddings)) continue;
    throw mismatch(what, `parameter ${name} does not belong to this model`);
  }
}

/** Copies `weights` in; see `checkWeights` for what is refused. */
export function fillParameters(
  store: ParameterStore,
  config: ModelConfig,
  weights: NamedWeights,
  what: string,
): void {
  checkWeights(config, weights, what);
  for (const [name, view] of store.views) view.data.set(weights.get(name)?.data ?? []);
}

export function addInto(into: Float32Array, values: Float32Array): void {
  for (let i = 0; i < into.length; i++) into[i] = (into[i] as number) + (values[i] as number);
}

/** The embedding's gradient: dx of every position added to the row of its token, in order. */
export function addEmbeddingGradient(
  into: Float32Array,
  tokenIds: Int32Array,
  dx: Float32Array,
): void {
  const width = dx.length / tokenIds.length;
  for (let n = 0; n < tokenIds.length; n++) {
    const from = n * width;
    const to = (tokenIds[n] as number) * width;
    for (let i = 0; i < width; i++) {
      into[to + i] = (into[to + i] as number) + (dx[from + i] as number);
    }
  }
}
