import type { Tensor } from "@tensorflow/tfjs";
import type { ModelConfig } from "../../model/model-config.ts";
import type { Tf } from "./tfjs-library.ts";

/** Tensors of the parameters by Hugging Face name. */
export type ParameterTensors = ReadonlyMap<string, Tensor>;

/** Cosines and sines that broadcast over [B, heads, T, headDim / 2]. */
export interface Rotation {
  readonly cos: Tensor;
  readonly sin: Tensor;
}

/**
 * The pieces that training and decoding share. Activations of N = B·T tokens are [N, features];
 * attention works on [B, heads, T, headDim], with the queries of a group folded into the time axis
 * ([B, kvHeads, G·T, headDim]), so that one product also sums the gradients of a group.
 */
export function createTfjsLayers(tf: Tf, config: ModelConfig, parameters: () => ParameterTensors) {
  const { headCount, kvHeadCount, headDim } = config;
  const group = headCount / kvHeadCount;
  const parameter = (name: string): Tensor => {
    const tensor = parameters().get(name);
    if (tensor === undefined) throw new RangeError(`no parameter ${name}`);
    return tensor;
  };

  return {
    parameter,
    /** x Wᵀ + b */
    linear(x: Tensor, p: { weight: string; bias?: string | undefined }): Tensor {
      const y: Tensor = tf.matMul(x, parameter(p.weight), false, true);
      return p.bias === undefined ? y : y.add(parameter(p.bias));
    },
    rmsNorm(x: Tensor, weight: string): { normed: Tensor; inverseRms: Tensor } {
      const inverseRms = x.square().mean(-1, true).add(config.rmsNormEpsilon).rsqrt();
      return { normed: x.mul(inverseRms).mul(parameter(weight)), inverseRms };
    },
    /** Half-split rotation, as Hugging Face's `rotate_half`. */
    rotate(x: Tensor, { cos, sin }: Rotation): Tensor {
      const [left, right] = tf.split(x, 2, -1) as [Tensor, Tensor];
      return tf.concat([left.mul(cos).sub(right.mul(sin)), right.mul(cos).add(left.mul(sin))], -1);
    },
    /** [N, heads·headDim] -> [B, heads, T, headDim] */
    splitHeads: (x: Tensor, batch: number, time: number, heads: number): Tensor =>
      x.reshape([batch, time, heads, headDim]).transpose([0, 2, 1, 3]),
    /** [B, heads, T, headDim] -> [N, heads·headDim] */
    joinHeads: (x: Tensor, heads: number): Tensor =>
      x.transpose([0, 2, 1, 3]).reshape([-1, heads * headDim]),
    /** [B, heads, T, headDim] -> [B, kvHeads, G·T, headDim] */
    groupQueries: (x: Tensor, batch: number, time: number): Tensor =>
      x.reshape([batch, kvHeadCount, group * time, headDim]),
    /** The reverse of `groupQueries`. */
    ungroupQueries: (x: Tensor, batch: number, time: number): Tensor =>
      x.reshape([batch, headCount, time, headDim]),
    product: (a: Tensor, b: Tensor, transposeA = false, transposeB = false): Tensor =>
      tf.matMul(a, b, transposeA, transposeB),
  };
}

export type TfjsLayers = ReturnType<typeof createTfjsLayers>;
