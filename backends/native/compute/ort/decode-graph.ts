import type { ModelConfig } from "../../model/model-config.ts";
import {
  embeddingName,
  finalNormName,
  headName,
  layerParameterNames,
  parameterShapes,
} from "../../model/parameter-shapes.ts";
import { createLayerNodes, type LayerNodes } from "./layer-nodes.ts";
import { createOnnxGraph, type OnnxGraph } from "./onnx-graph.ts";

interface DecodeContext {
  readonly g: OnnxGraph;
  readonly n: LayerNodes;
  readonly config: ModelConfig;
  readonly batchShape: string;
}

/**
 * Attention of C new tokens over P cached ones and themselves. The cache is only read; the new keys
 * and values come out and the caller appends them, so that no step copies the cache.
 */
function attention(c: DecodeContext, layer: number, normed: string): string {
  const { g, n, config, batchShape } = c;
  const names = layerParameterNames(config, layer);
  const cacheShape = ["B", config.kvHeadCount, "P", config.headDim];
  const pastKey = g.input(`past_key.${layer}`, "float32", cacheShape);
  const pastValue = g.input(`past_value.${layer}`, "float32", cacheShape);
  const heads = (p: { weight: string; bias: string | undefined }, count: number): string =>
    n.splitHeads(n.linear(normed, p.weight, p.bias), count, batchShape);
  const rotated = (x: string): string => n.rotate(x, "positions", "cos", "sin");
  const scale = g.float(1 / Math.sqrt(config.headDim));
  const q = n.groupQueries(
    n.multiply(rotated(heads(names.q, config.headCount)), scale),
    config.headDim,
  );
  const key = rotated(heads(names.k, config.kvHeadCount));
  const value = heads(names.v, config.kvHeadCount);
  const newShape = ["B", config.kvHeadCount, "C", config.headDim];
  g.output(`new_key.${layer}`, key, "float32", newShape);
  g.output(`new_value.${layer}`, value, "float32", newShape);
  const scores = g.node(
    "Concat",
    [
      n.add(n.product(q, pastKey, { transB: true }), "past_mask"),
      n.add(n.product(q, key, { transB: true }), "new_mask"),
    ],
    { axis: -1 },
  );
  const probabilities = g.node("Softmax", [scores], { axis: -1 });
  const parts = g.nodes("Split", [probabilities, "split_sizes"], 2, { axis: -1 });
  const [onPast, onNew] = parts as [string, string];
  const mixed = n.add(n.product(onPast, pastValue), n.product(onNew, value));
  return n.linear(n.joinHeads(n.ungroupQueries(mixed, batchShape), config.headCount), names.o);
}

function decodeLayer(c: DecodeContext, layer: number, x: string): string {
  const { g, n, config } = c;
  const names = layerParameterNames(config, layer);
  const [normed] = n.rmsNorm(x, names.inputNorm);
  const middle = n.add(x, attention(c, layer, normed));
  const [middleNormed] = n.rmsNorm(middle, names.postNorm);
  const gate = n.linear(middleNormed, names.gate);
  const silu = n.multiply(gate, g.node("Sigmoid", [gate]));
  const gated = n.multiply(silu, n.linear(middleNormed, names.up));
  return n.add(middle, n.linear(gated, names.down));
}

/**
 * B sequences × C new tokens, right-padded, over a cache of P tokens per sequence. Inputs besides
 * the weights: `token_ids` [B, C], `positions` [B, C], `last_indexes` [B] (flat position of each
 * sequence's last new token), `past_mask` [B, 1, 1, P] and `new_mask` [G·C, C] (0 or -∞),
 * `split_sizes` [P, C], the rope table, and per layer `past_key`, `past_value`. Outputs: `logits`
 * [B, vocabSize], and per layer `new_key`, `new_value` [B, kvHeads, C, headDim].
 */
export function decodeGraph(config: ModelConfig): Uint8Array {
  const g = createOnnxGraph("decode");
  const n = createLayerNodes(g, config);
  for (const { name, shape } of parameterShapes(config)) g.input(name, "float32", shape);
  g.input("token_ids", "int32", ["B", "C"]);
  g.input("positions", "int64", ["B", "C"]);
  g.input("last_indexes", "int32", ["B"]);
  g.input("past_mask", "float32", ["B", 1, 1, "P"]);
  g.input("new_mask", "float32", ["GC", "C"]);
  g.input("split_sizes", "int64", [2]);
  g.input("cos", "float32", ["L", config.headDim / 2]);
  g.input("sin", "float32", ["L", config.headDim / 2]);
  const c: DecodeContext = { g, n, config, batchShape: g.node("Shape", ["token_ids"]) };
  let x = g.node("Gather", [embeddingName, n.reshape("token_ids", [-1])], { axis: 0 });
  for (let layer = 0; layer < config.layerCount; layer++) x = decodeLayer(c, layer, x);
  const last = g.node("Gather", [x, "last_indexes"], { axis: 0 });
  const [normed] = n.rmsNorm(last, finalNormName);
  g.output("logits", n.linear(normed, headName(config)), "float32", ["B", config.vocabSize]);
  return g.encode();
}
