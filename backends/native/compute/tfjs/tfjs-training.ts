import type { Tensor } from "@tensorflow/tfjs";
import type { ModelConfig } from "../../model/model-config.ts";
import {
  embeddingName,
  finalNormName,
  headName,
  layerParameterNames,
} from "../../model/parameter-shapes.ts";
import type { Rotation, TfjsLayers } from "./tfjs-layers.ts";
import type { Tf } from "./tfjs-library.ts";

/** A right-padded batch on the device. N = B·T positions, M predicted tokens. */
export interface BatchTensors {
  readonly rowCount: number;
  readonly length: number;
  /** [N] */
  readonly tokenIds: Tensor;
  /** [M] */
  readonly predictIndexes: Tensor;
  /** [N]: which predicted token a position predicts, M for none. */
  readonly predictedBy: Tensor;
  /** [M, vocabSize] */
  readonly targets: Tensor;
  /** [G·T, T] */
  readonly causalMask: Tensor;
  readonly rotation: Rotation;
}

type LayerActivations = Readonly<
  Record<
    | "x"
    | "inverseRms"
    | "normed"
    | "q"
    | "k"
    | "v"
    | "probabilities"
    | "attended"
    | "middle"
    | "middleInverseRms"
    | "middleNormed"
    | "gate"
    | "up"
    | "gated",
    Tensor
  >
>;

/** What a forward pass keeps for its backward pass. */
export interface Activations {
  readonly layers: LayerActivations[];
  readonly x: Tensor;
  readonly inverseRms: Tensor;
  readonly head: Tensor;
  readonly logSoftmax: Tensor;
  /** [M] */
  readonly logprobs: Tensor;
}

/**
 * Forward and backward of a batch, with gradients derived by hand: the library's own lack
 * Einsum, GatherND and ScatterND, and WASM lacks the UnsortedSegmentSum that Gather's needs.
 */
export function createTfjsTraining(tf: Tf, n: TfjsLayers, config: ModelConfig) {
  const { headCount, kvHeadCount, headDim } = config;
  const scale = 1 / Math.sqrt(headDim);

  function forwardAttention(batch: BatchTensors, layer: number, normed: Tensor) {
    const names = layerParameterNames(config, layer);
    const { rowCount: B, length: T, rotation } = batch;
    const q = n.groupQueries(
      n.rotate(n.splitHeads(n.linear(normed, names.q), B, T, headCount), rotation),
      B,
      T,
    );
    const k = n.rotate(n.splitHeads(n.linear(normed, names.k), B, T, kvHeadCount), rotation);
    const v = n.splitHeads(n.linear(normed, names.v), B, T, kvHeadCount);
    const scores = n.product(q, k, false, true).mul(scale).add(batch.causalMask);
    const probabilities = tf.softmax(scores);
    const mixed = n.ungroupQueries(n.product(probabilities, v), B, T);
    return { q, k, v, probabilities, attended: n.joinHeads(mixed, headCount) };
  }

  function forwardLayer(batch: BatchTensors, layer: number, x: Tensor) {
    const names = layerParameterNames(config, layer);
    const { normed, inverseRms } = n.rmsNorm(x, names.inputNorm);
    const attention = forwardAttention(batch, layer, normed);
    const middle = x.add(n.linear(attention.attended, { weight: names.o }));
    const { normed: middleNormed, inverseRms: middleInverseRms } = n.rmsNorm(
      middle,
      names.postNorm,
    );
    const gate = n.linear(middleNormed, { weight: names.gate });
    const up = n.linear(middleNormed, { weight: names.up });
    const gated = gate.mul(gate.sigmoid()).mul(up);
    const saved: LayerActivations = {
      x,
      inverseRms,
      normed,
      ...attention,
      middle,
      middleInverseRms,
      middleNormed,
      gate,
      up,
      gated,
    };
    return { saved, output: middle.add(n.linear(gated, { weight: names.down })) };
  }

  /** Call inside `tf.tidy`. */
  function forward(batch: BatchTensors, temperature: number): Activations {
    const layers: LayerActivations[] = [];
    let x: Tensor = tf.gather(n.parameter(embeddingName), batch.tokenIds.toInt());
    for (let layer = 0; layer < config.layerCount; layer++) {
      const { saved, output } = forwardLayer(batch, layer, x);
      layers.push(saved);
      x = output;
    }
    const { normed, inverseRms } = n.rmsNorm(x, finalNormName);
    const head = tf.gather(normed, batch.predictIndexes.toInt()).div(temperature);
    const logSoftmax: Tensor = tf.logSoftmax(n.linear(head, { weight: headName(config) }));
    const logprobs = logSoftmax.mul(batch.targets).sum(-1);
    return { layers, x, inverseRms, head, logSoftmax, logprobs };
  }

  type Gradients = Map<string, Tensor>;

  /** y = x̂ w with x̂ = x r: dw = Σ dy x̂ and dx = r (dy w - x̂ mean(dy w x̂)). */
  function normBackward(out: Gradients, name: string, dy: Tensor, x: Tensor, inverseRms: Tensor) {
    const unit = x.mul(inverseRms);
    out.set(name, dy.mul(unit).sum(0));
    const scaled = dy.mul(n.parameter(name));
    const mean = scaled.mul(unit).mean(-1, true);
    return scaled.sub(unit.mul(mean)).mul(inverseRms);
  }

  /** dW = dyᵀ x and, given back, dx = dy W. */
  function linearBackward(
    out: Gradients,
    p: { weight: string; bias?: string | undefined },
    dy: Tensor,
    x: Tensor,
  ): Tensor {
    out.set(p.weight, n.product(dy, x, true));
    if (p.bias !== undefined) out.set(p.bias, dy.sum(0));
    return n.product(dy, n.parameter(p.weight));
  }

  function mlpBackward(out: Gradients, layer: number, saved: LayerActivations, dy: Tensor): Tensor {
    const names = layerParameterNames(config, layer);
    const dGated = linearBackward(out, { weight: names.down }, dy, saved.gated);
    const sigmoid = saved.gate.sigmoid();
    const silu = saved.gate.mul(sigmoid);
    const slope = sigmoid.add(silu.sub(silu.mul(sigmoid)));
    const dGate = dGated.mul(saved.up).mul(slope);
    const fromGate = linearBackward(out, { weight: names.gate }, dGate, saved.middleNormed);
    const dUp = dGated.mul(silu);
    const fromUp = linearBackward(out, { weight: names.up }, dUp, saved.middleNormed);
    const dNormed = fromGate.add(fromUp);
    return dy.add(normBackward(out, names.postNorm, dNormed, saved.middle, saved.middleInverseRms));
  }

  function attentionBackward(
    out: Gradients,
    layer: number,
    saved: LayerActivations,
    batch: BatchTensors,
    dy: Tensor,
  ): Tensor {
    const names = layerParameterNames(config, layer);
    const { rowCount: B, length: T } = batch;
    const dAttended = linearBackward(out, { weight: names.o }, dy, saved.attended);
    const grouped = (x: Tensor): Tensor => n.groupQueries(n.splitHeads(x, B, T, headCount), B, T);
    const dO = grouped(dAttended);
    const delta = dO.mul(grouped(saved.attended)).sum(-1, true);
    const dScores = saved.probabilities
      .mul(n.product(dO, saved.v, false, true).sub(delta))
      .mul(scale);
    const back: Rotation = { cos: batch.rotation.cos, sin: batch.rotation.sin.neg() };
    const dQ = n.rotate(n.ungroupQueries(n.product(dScores, saved.k), B, T), back);
    const dK = n.rotate(n.product(dScores, saved.q, true), back);
    const dV = n.product(saved.probabilities, dO, true);
    const dNormed = linearBackward(out, names.q, n.joinHeads(dQ, headCount), saved.normed)
      .add(linearBackward(out, names.k, n.joinHeads(dK, kvHeadCount), saved.normed))
      .add(linearBackward(out, names.v, n.joinHeads(dV, kvHeadCount), saved.normed));
    return dy.add(normBackward(out, names.inputNorm, dNormed, saved.x, saved.inverseRms));
  }

  /**
   * Gradients of Σ g · logprobs, g [M, 1], by parameter; the embedding's own rows are left to the
   * caller as `embedded`, the gradient [N, hiddenSize] of the embedded tokens. Call inside `tf.tidy`.
   */
  function backward(batch: BatchTensors, kept: Activations, g: Tensor, temperature: number) {
    const out: Gradients = new Map();
    const dLogits = g.mul(batch.targets.sub(kept.logSoftmax.exp()));
    const dHead = linearBackward(out, { weight: headName(config) }, dLogits, kept.head);
    const padded = tf.concat([dHead.div(temperature), tf.zeros([1, config.hiddenSize])], 0);
    const dNormed: Tensor = tf.gather(padded, batch.predictedBy.toInt());
    let dx = normBackward(out, finalNormName, dNormed, kept.x, kept.inverseRms);
    for (const [layer, saved] of [...kept.layers.entries()].toReversed()) {
      dx = attentionBackward(out, layer, saved, batch, mlpBackward(out, layer, saved, dx));
    }
    return { gradients: out, embedded: dx };
  }

  return { forward, backward };
}

export type TfjsTraining = ReturnType<typeof createTfjsTraining>;
