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

/** A decode step on the device; see `DecodeStep` for the meaning of the fields. */
export interface StepTensors {
  readonly count: number;
  readonly width: number;
  /** [count·width] */
  readonly tokenIds: Tensor;
  /** [count] */
  readonly lastIndexes: Tensor;
  readonly rotation: Rotation;
  /** [G·width, width] */
  readonly newMask: Tensor;
  /** Absent when nothing is cached: mask [count, 1, 1, P], per layer [count, kvHeads, P, headDim]. */
  readonly past?: {
    readonly mask: Tensor;
    readonly layers: readonly { readonly keys: Tensor; readonly values: Tensor }[];
  };
}

export interface StepOutputs {
  readonly logits: Tensor;
  readonly layers: { readonly keys: Tensor; readonly values: Tensor }[];
}

/** Logits after each sequence's last new token, and the new keys and values. Call inside `tf.tidy`. */
export function decodeStep(
  tf: Tf,
  n: TfjsLayers,
  config: ModelConfig,
  step: StepTensors,
): StepOutputs {
  const { headCount, kvHeadCount, headDim } = config;
  const { count: B, width: C, rotation } = step;
  const layers: StepOutputs["layers"] = [];

  const attend = (layer: number, normed: Tensor): Tensor => {
    const names = layerParameterNames(config, layer);
    const rotated = n.rotate(n.splitHeads(n.linear(normed, names.q), B, C, headCount), rotation);
    const q = n.groupQueries(rotated, B, C).div(Math.sqrt(headDim));
    const keys = n.rotate(n.splitHeads(n.linear(normed, names.k), B, C, kvHeadCount), rotation);
    const values = n.splitHeads(n.linear(normed, names.v), B, C, kvHeadCount);
    layers.push({ keys, values });
    let scores = n.product(q, keys, false, true).add(step.newMask);
    let allValues = values;
    const past = step.past?.layers[layer];
    if (past !== undefined && step.past !== undefined) {
      const onPast = n.product(q, past.keys, false, true).add(step.past.mask);
      scores = tf.concat([onPast, scores], -1);
      allValues = tf.concat([past.values, values], 2);
    }
    const mixed = n.ungroupQueries(n.product(tf.softmax(scores), allValues), B, C);
    return n.linear(n.joinHeads(mixed, headCount), { weight: names.o });
  };

  let x: Tensor = tf.gather(n.parameter(embeddingName), step.tokenIds.toInt());
  for (let layer = 0; layer < config.layerCount; layer++) {
    const names = layerParameterNames(config, layer);
    const middle = x.add(attend(layer, n.rmsNorm(x, names.inputNorm).normed));
    const { normed } = n.rmsNorm(middle, names.postNorm);
    const gate = n.linear(normed, { weight: names.gate });
    const gated = gate.mul(gate.sigmoid()).mul(n.linear(normed, { weight: names.up }));
    x = middle.add(n.linear(gated, { weight: names.down }));
  }
  const last = tf.gather(x, step.lastIndexes.toInt());
  const logits = n.linear(n.rmsNorm(last, finalNormName).normed, { weight: headName(config) });
  return { logits, layers };
}
