import type { ModelConfig } from "../../model/model-config.ts";
import {
  embeddingName,
  finalNormName,
  headName,
  layerParameterNames,
} from "../../model/parameter-shapes.ts";
import { addTrainInputs } from "./add-train-inputs.ts";
import { createLayerNodes, type LayerNodes } from "./layer-nodes.ts";
import { createOnnxGraph, type OnnxGraph } from "./onnx-graph.ts";
import { type SavedShape, savedShapes } from "./saved-shapes.ts";

/** Saved values keep their symbolic sizes: [any, …], which the runtime infers. */
function save(g: OnnxGraph, saves: boolean, saved: SavedShape | undefined, value: string): void {
  if (!saves || saved === undefined) return;
  const rank = saved.shape({ B: 1, T: 1, M: 1 }).length;
  g.output(
    saved.name,
    value,
    "float32",
    Array.from({ length: rank }, (_, i) => `${saved.name}.${i}`),
  );
}

interface ForwardContext {
  readonly g: OnnxGraph;
  readonly n: LayerNodes;
  readonly config: ModelConfig;
  readonly batchShape: string;
  readonly keep: (name: string, value: string) => void;
}

function attention(c: ForwardContext, layer: number, normed: string): string {
  const { g, n, config, batchShape } = c;
  const names = layerParameterNames(config, layer);
  const heads = (p: { weight: string; bias: string | undefined }, count: number): string =>
    n.splitHeads(n.linear(normed, p.weight, p.bias), count, batchShape);
  const rotated = (x: string): string => n.rotate(x, "positions", "cos", "sin");
  const q = n.groupQueries(rotated(heads(names.q, config.headCount)), config.headDim);
  const k = rotated(heads(names.k, config.kvHeadCount));
  const v = heads(names.v, config.kvHeadCount);
  const scores = n.product(q, k, { transB: true, alpha: 1 / Math.sqrt(config.headDim) });
  const probabilities = g.node("Softmax", [n.add(scores, "causal_mask")], { axis: -1 });
  const perHead = n.ungroupQueries(n.product(probabilities, v), batchShape);
  const attended = n.joinHeads(perHead, config.headCount);
  c.keep(`saved.${layer}.q`, q);
  c.keep(`saved.${layer}.k`, k);
  c.keep(`saved.${layer}.v`, v);
  c.keep(`saved.${layer}.probabilities`, probabilities);
  c.keep(`saved.${layer}.attended`, attended);
  return n.linear(attended, names.o);
}

function forwardLayer(c: ForwardContext, layer: number, x: string): string {
  const { g, n, config } = c;
  const names = layerParameterNames(config, layer);
  const [normed, inverseRms] = n.rmsNorm(x, names.inputNorm);
  const middle = n.add(x, attention(c, layer, normed));
  const [middleNormed, middleInverseRms] = n.rmsNorm(middle, names.postNorm);
  const gate = n.linear(middleNormed, names.gate);
  const up = n.linear(middleNormed, names.up);
  const gated = n.multiply(n.multiply(gate, g.node("Sigmoid", [gate])), up);
  c.keep(`saved.${layer}.x`, x);
  c.keep(`saved.${layer}.inverseRms`, inverseRms);
  c.keep(`saved.${layer}.normed`, normed);
  c.keep(`saved.${layer}.middle`, middle);
  c.keep(`saved.${layer}.middleInverseRms`, middleInverseRms);
  c.keep(`saved.${layer}.middleNormed`, middleNormed);
  c.keep(`saved.${layer}.gate`, gate);
  c.keep(`saved.${layer}.up`, up);
  c.keep(`saved.${layer}.gated`, gated);
  return n.add(middle, n.linear(gated, names.down));
}

/**
 * Logprobs of a right-padded batch. Causality alone hides the padding: it comes after every real
 * token. Outputs `logprobs` [M, 1] and, with `saves`, what `backwardGraph` needs.
 */
export function forwardGraph(config: ModelConfig, saves: boolean): Uint8Array {
  const g = createOnnxGraph(saves ? "forward_saving" : "forward");
  const n = createLayerNodes(g, config);
  addTrainInputs(g, config);
  g.input("causal_mask", "float32", ["GT", "T"]);
  const saved = new Map(savedShapes(config).map((s) => [s.name, s]));
  const c: ForwardContext = {
    g,
    n,
    config,
    batchShape: g.node("Shape", ["token_ids"]),
    keep: (name, value) => save(g, saves, saved.get(name), value),
  };
  let x = g.node("Gather", [embeddingName, n.reshape("token_ids", [-1])], { axis: 0 });
  for (let layer = 0; layer < config.layerCount; layer++) x = forwardLayer(c, layer, x);
  const [normed, inverseRms] = n.rmsNorm(x, finalNormName);
  const picked = g.node("Gather", [normed, "predict_indexes"], { axis: 0 });
  const head = n.multiply(picked, "inverse_temperature");
  const logSoftmax = g.node("LogSoftmax", [n.linear(head, headName(config))], { axis: -1 });
  c.keep("saved.final.x", x);
  c.keep("saved.final.inverseRms", inverseRms);
  c.keep("saved.final.head", head);
  c.keep("saved.final.logSoftmax", logSoftmax);
  const logprobs = g.node("GatherElements", [logSoftmax, "targets"], { axis: 1 });
  g.output("logprobs", logprobs, "float32", ["M", 1]);
  return g.encode();
}
