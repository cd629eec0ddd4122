import type { ModelConfig } from "../../model/model-config.ts";

/** What the forward graph keeps of one layer for the backward graph, with element counts. */
export interface SavedShape {
  readonly name: string;
  /** Sizes as products of these: B rows, T padded length, M predicted tokens. */
  shape(sizes: { readonly B: number; readonly T: number; readonly M: number }): number[];
}

/** Every activation that the backward graph reads, in the order of the forward pass. */
export function savedShapes(config: ModelConfig): SavedShape[] {
  const { hiddenSize: d, intermediateSize: f, headCount, kvHeadCount, headDim } = config;
  const perToken = (name: string, width: number): SavedShape => ({
    name,
    shape: ({ B, T }) => [B * T, width],
  });
  const perHead = (name: string, heads: number): SavedShape => ({
    name,
    shape: ({ B, T }) => [B, heads, T, headDim],
  });
  const group = headCount / kvHeadCount;
  const layers = Array.from({ length: config.layerCount }, (_, l): SavedShape[] => [
    perToken(`saved.${l}.x`, d),
    perToken(`saved.${l}.inverseRms`, 1),
    perToken(`saved.${l}.normed`, d),
    { name: `saved.${l}.q`, shape: ({ B, T }) => [B, kvHeadCount, group * T, headDim] },
    perHead(`saved.${l}.k`, kvHeadCount),
    perHead(`saved.${l}.v`, kvHeadCount),
    {
      name: `saved.${l}.probabilities`,
      shape: ({ B, T }) => [B, kvHeadCount, group * T, T],
    },
    perToken(`saved.${l}.attended`, headCount * headDim),
    perToken(`saved.${l}.middle`, d),
    perToken(`saved.${l}.middleInverseRms`, 1),
    perToken(`saved.${l}.middleNormed`, d),
    perToken(`saved.${l}.gate`, f),
    perToken(`saved.${l}.up`, f),
    perToken(`saved.${l}.gated`, f),
  ]);
  return [
    ...layers.flat(),
    perToken("saved.final.x", d),
    perToken("saved.final.inverseRms", 1),
    { name: "saved.final.head", shape: ({ M }) => [M, d] },
    { name: "saved.final.logSoftmax", shape: ({ M }) => [M, config.vocabSize] },
  ];
}
