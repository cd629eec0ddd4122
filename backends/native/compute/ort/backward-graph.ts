import type { ModelConfig } from "../../model/model-config.ts";
import {
  finalNormName,
  headName,
  layerParameterNames,
  parameterShapes,
} from "../../model/parameter-shapes.ts";
import { addTrainInputs } from "./add-train-inputs.ts";
import { createLayerNodes, type LayerNodes } from "./layer-nodes.ts";
import { createOnnxGraph, type OnnxGraph } from "./onnx-graph.ts";
import { savedShapes } from "./saved-shapes.ts";

export const gradientOutput = (parameter: string): string => `gradient.${parameter}`;

interface BackwardContext {
  readonly g: OnnxGraph;
  readonly n: LayerNodes;
  readonly config: ModelConfig;
  readonly batchShape: string;
  /** Declares the gradient of a parameter as an output. */
  readonly gradient: (parameter: string | undefined, value: () => string) => void;
}

/**
 * y = x̂ w with x̂ = x r: dw = Σ dy x̂ and dx = r (dy w - x̂ mean(dy w x̂)).
 * Adds dx to `onto`, the gradient that arrives past the norm.
 */
function rmsNormBackward(
  c: BackwardContext,
  parameter: string,
  dy: string,
  x: string,
  inverseRms: string,
  onto: string | undefined,
): string {
  const { g, n } = c;
  const unit = n.multiply(x, inverseRms);
  c.gradient(parameter, () => n.sumOverTokens(n.multiply(dy, unit)));
  const scaled = n.multiply(dy, parameter);
  const mean = g.node("ReduceMean", [n.multiply(scaled, unit)], { axes: [-1], keepdims: 1 });
  const dx = n.multiply(n.subtract(scaled, n.multiply(unit, mean)), inverseRms);
  return onto === undefined ? dx : n.add(dx, onto);
}

/** d silu(gate)·up, with silu' = s + silu (1 - s), s = sigmoid(gate). Returns dx of the block. */
function mlpBackward(c: BackwardContext, layer: number, dy: string): string {
  const { g, n, config } = c;
  const names = layerParameterNames(config, layer);
  const at = (name: string): string => `saved.${layer}.${name}`;
  c.gradient(names.down, () =>
    n.linearWeightGradient(dy, at("gated"), config.hiddenSize, config.intermediateSize),
  );
  const dGated = n.linearInputGradient(dy, names.down);
  const sigmoid = g.node("Sigmoid", [at("gate")]);
  const silu = n.multiply(at("gate"), sigmoid);
  const slope = n.add(sigmoid, n.multiply(silu, n.subtract(g.float(1), sigmoid)));
  const dGate = n.multiply(n.multiply(dGated, at("up")), slope);
  const dUp = n.multiply(dGated, silu);
  c.gradient(names.gate, () =>
    n.linearWeightGradient(dGate, at("middleNormed"), config.intermediateSize, config.hiddenSize),
  );
  c.gradient(names.up, () =>
    n.linearWeightGradient(dUp, at("middleNormed"), config.intermediateSize, config.hiddenSize),
  );
  const dNormed = n.linearInputGradient(dUp, names.up, n.linearInputGradient(dGate, names.gate));
  return rmsNormBackward(c, names.postNorm, dNormed, at("middle"), at("middleInverseRms"), dy);
}

/**
 * Softmax backward is dS = P (dP - δ), δ = Σ dO·O per query. The subtraction rides along in the
 * product dP = dO Vᵀ as one more column: [dO, -δ] [V, 1]ᵀ.
 */
function scoreGradient(c: BackwardContext, layer: number, dAttended: string): [string, string] {
  const { g, n, config, batchShape } = c;
  const { headCount, kvHeadCount, headDim } = config;
  const at = (name: string): string => `saved.${layer}.${name}`;
  const dO = n.splitHeads(dAttended, headCount, batchShape);
  const weighted = n.reshape(n.multiply(dAttended, at("attended")), [-1, headCount, headDim]);
  const sums = g.node("Neg", [g.node("ReduceSum", [weighted, g.ints([2])], { keepdims: 0 })]);
  const shape = g.node("Concat", [batchShape, g.ints([headCount, 1])], { axis: 0 });
  const minusDelta = g.node("Transpose", [g.node("Reshape", [sums, shape])], {
    perm: [0, 2, 1, 3],
  });
  const left = n.groupQueries(g.node("Concat", [dO, minusDelta], { axis: -1 }), headDim + 1);
  const [batch, time] = g.nodes("Split", [batchShape, g.ints([1, 1])], 2, { axis: 0 });
  const onesShape = g.node(
    "Concat",
    [batch as string, g.ints([kvHeadCount]), time as string, g.ints([1])],
    { axis: 0 },
  );
  const ones = g.node("Expand", [g.float(1), onesShape]);
  const right = g.node("Concat", [at("v"), ones], { axis: -1 });
  const dScores = n.multiply(at("probabilities"), n.product(left, right, { transB: true }));
  return [dScores, n.groupQueries(dO, headDim)];
}

function attentionBackward(c: BackwardContext, layer: number, dy: string): string {
  const { n, config, batchShape } = c;
  const names = layerParameterNames(config, layer);
  const at = (name: string): string => `saved.${layer}.${name}`;
  c.gradient(names.o, () =>
    n.linearWeightGradient(
      dy,
      at("attended"),
      config.hiddenSize,
      config.headCount * config.headDim,
    ),
  );
  const [dScores, dO] = scoreGradient(c, layer, n.linearInputGradient(dy, names.o));
  const alpha = 1 / Math.sqrt(config.headDim);
  const unrotated = (x: string): string => n.rotate(x, "positions", "cos", "sin");
  const dQ = n.ungroupQueries(n.product(dScores, at("k"), { alpha }), batchShape);
  const dK = n.transposedProduct(dScores, at("q"), alpha);
  const dV = n.transposedProduct(at("probabilities"), dO, 1);
  let dNormed: string | undefined;
  for (const [projection, heads, headGradient] of [
    [names.q, config.headCount, unrotated(dQ)],
    [names.k, config.kvHeadCount, unrotated(dK)],
    [names.v, config.kvHeadCount, dV],
  ] as const) {
    const joined = n.joinHeads(headGradient, heads);
    c.gradient(projection.weight, () =>
      n.linearWeightGradient(joined, at("normed"), heads * config.headDim, config.hiddenSize),
    );
    c.gradient(projection.bias, () => n.sumOverTokens(joined));
    dNormed = n.linearInputGradient(joined, projection.weight, dNormed);
  }
  return rmsNormBackward(c, names.inputNorm, dNormed as string, at("x"), at("inverseRms"), dy);
}

/** From dlogprob [M, 1] to the gradient of the last layer's output, in every position. */
function headBackward(c: BackwardContext): string {
  const { g, n, config } = c;
  const head = headName(config);
  const pull = g.node("Neg", ["logprob_gradient"]);
  const spread = n.multiply(g.node("Exp", ["saved.final.logSoftmax"]), pull);
  const dLogits = g.node("ScatterElements", [spread, "targets", "logprob_gradient"], {
    axis: 1,
    reduction: "add",
  });
  c.gradient(head, () =>
    n.linearWeightGradient(dLogits, "saved.final.head", config.vocabSize, config.hiddenSize),
  );
  const dPicked = n.multiply(n.linearInputGradient(dLogits, head), "inverse_temperature");
  // ConstantOfShape's default value is float32 zero.
  const zeros = g.node("ConstantOfShape", [g.node("Shape", ["saved.final.x"])]);
  const indexes = n.reshape("predict_indexes", [-1, 1]);
  const dNormed = g.node("ScatterND", [zeros, g.node("Cast", [indexes], { to: 7 }), dPicked]);
  return rmsNormBackward(
    c,
    finalNormName,
    dNormed,
    "saved.final.x",
    "saved.final.inverseRms",
    undefined,
  );
}

/**
 * Gradients of Σ logprob_gradient · logprobs. Inputs: the forward graph's (with `sin` negated, which
 * turns rotations back), what it saved, and `logprob_gradient` [M, 1]. Outputs: one gradient per
 * parameter, but for the embedding `embedded_gradient` [N, hiddenSize]: its rows are added up by
 * the caller, in a fixed order (a tied head's own part is an output like the others).
 */
export function backwardGraph(config: ModelConfig): Uint8Array {
  const g = createOnnxGraph("backward");
  addTrainInputs(g, config);
  g.input("logprob_gradient", "float32", ["M", 1]);
  for (const saved of savedShapes(config)) {
    const rank = saved.shape({ B: 1, T: 1, M: 1 }).length;
    g.input(
      saved.name,
      "float32",
      Array.from({ length: rank }, (_, i) => `${saved.name}.${i}`),
    );
  }
  const shapes = new Map(parameterShapes(config).map((p) => [p.name, p.shape]));
  const c: BackwardContext = {
    g,
    n: createLayerNodes(g, config),
    config,
    batchShape: g.node("Shape", ["token_ids"]),
    gradient: (parameter, value) => {
      if (parameter === undefined) return;
      g.output(gradientOutput(parameter), value(), "float32", shapes.get(parameter) ?? []);
    },
  };
  let dx = headBackward(c);
  for (let layer = config.layerCount - 1; layer >= 0; layer--) {
    dx = attentionBackward(c, layer, mlpBackward(c, layer, dx));
  }
  g.output("embedded_gradient", dx, "float32", ["N", config.hiddenSize]);
  return g.encode();
}
