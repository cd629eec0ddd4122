import type { ModelConfig } from "../model/model-config.ts";

/** Cosines and sines [length, headDim / 2], computed in float64 and rounded once. */
export interface RopeTable {
  readonly length: number;
  readonly cos: Float32Array;
  readonly sin: Float32Array;
  readonly negatedSin: Float32Array;
}

/** Rotary position table: angle(position, i) = position / theta^(2i / headDim) (RoFormer, §3.2). */
export function ropeTable(config: ModelConfig, length: number): RopeTable {
  const half = config.headDim / 2;
  const cos = new Float32Array(length * half);
  const sin = new Float32Array(length * half);
  for (let position = 0; position < length; position++) {
    for (let i = 0; i < half; i++) {
      const angle = position / config.ropeTheta ** ((2 * i) / config.headDim);
      cos[position * half + i] = Math.cos(angle);
      sin[position * half + i] = Math.sin(angle);
    }
  }
  return { length, cos, sin, negatedSin: sin.map((value) => -value) };
}
