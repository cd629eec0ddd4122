import ort from "onnxruntime-node";
import type { ParameterStore } from "../parameter-store.ts";

/** Named inputs or outputs of a run. Tensors are views: ONNX Runtime reads and writes their memory. */
export type Feeds = Record<string, ort.Tensor>;

export const f32 = (data: Float32Array, shape: readonly number[]): ort.Tensor =>
  new ort.Tensor("float32", data, shape);
export const i32 = (data: Int32Array, shape: readonly number[]): ort.Tensor =>
  new ort.Tensor("int32", data, shape);
export const i64 = (data: BigInt64Array, shape: readonly number[]): ort.Tensor =>
  new ort.Tensor("int64", data, shape);

/** One tensor per parameter over the store's own memory: an update needs no new feed. */
export function parameterFeeds(store: ParameterStore): Feeds {
  return Object.fromEntries(Array.from(store.views, ([name, v]) => [name, f32(v.data, v.shape)]));
}
