import type { ModelConfig } from "../../model/model-config.ts";
import { microsoft, type OnnxGraph } from "./onnx-graph.ts";

/**
 * The pieces that the forward, backward and decode graphs share. Activations of N = B·T tokens are
 * [N, features]; attention works on [B, heads, T, headDim]. Grouped queries are folded into the time
 * axis ([B, kvHeads, G·T, headDim], G = heads / kvHeads), which needs no copy and lets one product
 * sum the gradients of a group.
 */
export function createLayerNodes(g: OnnxGraph, config: ModelConfig) {
  const { headCount, kvHeadCount, headDim } = config;
  const epsilon = { float: config.rmsNormEpsilon };

  const reshape = (x: string, shape: readonly number[]): string =>
    g.node("Reshape", [x, g.ints(shape)]);
  const swapTimeAndHeads = (x: string): string => g.node("Transpose", [x], { perm: [0, 2, 1, 3] });
  /** [N, width] -> [width, N]; as a batch of one, or the runtime would fuse it into a product. */
  const transposed = (x: string, width: number): string => {
    const batched = g.node("Transpose", [reshape(x, [1, -1, width])], { perm: [0, 2, 1] });
    return reshape(batched, [width, -1]);
  };

  return {
    reshape,
    add: (a: string, b: string): string => g.node("Add", [a, b]),
    subtract: (a: string, b: string): string => g.node("Sub", [a, b]),
    multiply: (a: string, b: string): string => g.node("Mul", [a, b]),
    /** x Wᵀ + b, for W [out, in]. */
    linear: (x: string, weight: string, bias?: string): string =>
      g.node("Gemm", bias === undefined ? [x, weight] : [x, weight, bias], { transB: 1 }),
    /** dx of `linear`, added to `onto`. */
    linearInputGradient: (dy: string, weight: string, onto?: string): string =>
      g.node("Gemm", onto === undefined ? [dy, weight] : [dy, weight, onto]),
    /**
     * dW [out, in] of `linear`: dyᵀ x. A product with a transposed left side takes half as long
     * again, so the narrower of the two is transposed first.
     */
    linearWeightGradient: (dy: string, x: string, out: number, into: number): string => {
      if (out <= into) return g.node("Gemm", [transposed(dy, out), x]);
      return g.node("Transpose", [g.node("Gemm", [transposed(x, into), dy])], { perm: [1, 0] });
    },
    /** aᵀ b over the last two axes, as (bᵀ a)ᵀ for an `b` narrower than `a`; same reason. */
    transposedProduct: (a: string, b: string, alpha: number): string => {
      const flipped = { transA: 1, transB: 0, alpha: { float: alpha } };
      const product = g.node("FusedMatMul", [b, a], flipped, microsoft);
      return g.node("Transpose", [product], { perm: [0, 1, 3, 2] });
    },
    sumOverTokens: (x: string): string => g.node("ReduceSum", [x, g.ints([0])], { keepdims: 0 }),
    /** [normalised · weight, 1 / rms [N, 1]] */
    rmsNorm: (x: string, weight: string): [string, string] => {
      const [y, inverse] = g.nodes("SimplifiedLayerNormalization", [x, weight], 2, {
        axis: -1,
        epsilon,
        stash_type: 1,
      });
      return [y as string, inverse as string];
    },
    /** a·b over the last two axes with optional transposes, scaled by alpha. */
    product: (a: string, b: string, options: { transB?: boolean; alpha?: number } = {}): string =>
      g.node(
        "FusedMatMul",
        [a, b],
        {
          transA: 0,
          transB: options.transB ? 1 : 0,
          alpha: { float: options.alpha ?? 1 },
        },
        microsoft,
      ),
    /** Half-split rotation, as Hugging Face's `rotate_half`; x is [B, heads, T, headDim]. */
    rotate: (x: string, positions: string, cos: string, sin: string): string =>
      g.node("RotaryEmbedding", [x, positions, cos, sin], { interleaved: 0 }, microsoft),
    /** [N, heads·headDim] -> [B, heads, T, headDim]; `like` [B, T] lends its sizes. */
    splitHeads: (x: string, heads: number, batchShape: string): string => {
      const shape = g.node("Concat", [batchShape, g.ints([heads, headDim])], { axis: 0 });
      return swapTimeAndHeads(g.node("Reshape", [x, shape]));
    },
    /** [B, heads, T, headDim] -> [N, heads·headDim] */
    joinHeads: (x: string, heads: number): string =>
      reshape(swapTimeAndHeads(x), [-1, heads * headDim]),
    /** [B, heads, T, d] -> [B, kvHeads, G·T, d]: a view. */
    groupQueries: (x: string, width: number): string => reshape(x, [0, kvHeadCount, -1, width]),
    /** [B, kvHeads, G·T, headDim] -> [B, heads, T, headDim]: a view; T from `batchShape`. */
    ungroupQueries: (x: string, batchShape: string): string => {
      const parts = g.nodes("Split", [batchShape, g.ints([1, 1])], 2, { axis: 0 });
      const [batch, time] = parts as [string, string];
      const shape = g.node("Concat", [batch, g.ints([headCount]), time, g.ints([headDim])], {
        axis: 0,
      });
      return g.node("Reshape", [x, shape]);
    },
  };
}

export type LayerNodes = ReturnType<typeof createLayerNodes>;
