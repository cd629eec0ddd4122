import type { ModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import {
  embeddingName,
  finalNormName,
  headName,
  layerParameterNames,
} from "../../backends/native/model/parameter-shapes.ts";

// A float64 decoder on plain arrays, one token row at a time. It shares no arithmetic with the
// implementations under test: a small tape of operations, each with its own derivative.

/** A [rows, cols] value with its gradient. */
interface Matrix {
  readonly rows: number;
  readonly cols: number;
  readonly data: Float64Array;
  readonly grad: Float64Array;
}

const matrix = (
  rows: number,
  cols: number,
  data: Float64Array = new Float64Array(rows * cols),
): Matrix => ({ rows, cols, data, grad: new Float64Array(rows * cols) });

export type Reference64Weights = ReadonlyMap<string, Matrix>;

export function reference64Weights(weights: NamedWeights): Map<string, Matrix> {
  return new Map(
    Array.from(weights, ([name, { shape, data }]) => {
      const cols = shape.at(-1) ?? 1;
      return [name, matrix(data.length / cols, cols, Float64Array.from(data))];
    }),
  );
}

type Tape = (() => void)[];
const at = (m: Float64Array, i: number): number => m[i] as number;
const bump = (m: Float64Array, i: number, by: number): void => {
  m[i] = at(m, i) + by;
};

/** y = x Wᵀ + b */
function linear(tape: Tape, x: Matrix, w: Matrix, b?: Matrix): Matrix {
  const y = matrix(x.rows, w.rows);
  for (let r = 0; r < x.rows; r++) {
    for (let o = 0; o < w.rows; o++) {
      let sum = b === undefined ? 0 : at(b.data, o);
      for (let i = 0; i < x.cols; i++)
        sum += at(x.data, r * x.cols + i) * at(w.data, o * w.cols + i);
      y.data[r * y.cols + o] = sum;
    }
  }
  tape.push(() => {
    for (let r = 0; r < x.rows; r++) {
      for (let o = 0; o < w.rows; o++) {
        const dy = at(y.grad, r * y.cols + o);
        if (dy === 0) continue;
        if (b !== undefined) bump(b.grad, o, dy);
        for (let i = 0; i < x.cols; i++) {
          bump(x.grad, r * x.cols + i, dy * at(w.data, o * w.cols + i));
          bump(w.grad, o * w.cols + i, dy * at(x.data, r * x.cols + i));
        }
      }
    }
  });
  return y;
}

function add(tape: Tape, a: Matrix, b: Matrix): Matrix {
  const y = matrix(
    a.rows,
    a.cols,
    a.data.map((value, i) => value + at(b.data, i)),
  );
  tape.push(() => {
    for (let i = 0; i < y.grad.length; i++) {
      bump(a.grad, i, at(y.grad, i));
      bump(b.grad, i, at(y.grad, i));
    }
  });
  return y;
}

function rmsNorm(tape: Tape, x: Matrix, w: Matrix, epsilon: number): Matrix {
  const y = matrix(x.rows, x.cols);
  const inverse = new Float64Array(x.rows);
  for (let r = 0; r < x.rows; r++) {
    let squares = 0;
    for (let i = 0; i < x.cols; i++) squares += at(x.data, r * x.cols + i) ** 2;
    inverse[r] = 1 / Math.sqrt(squares / x.cols + epsilon);
    for (let i = 0; i < x.cols; i++) {
      y.data[r * x.cols + i] = at(x.data, r * x.cols + i) * at(inverse, r) * at(w.data, i);
    }
  }
  tape.push(() => {
    for (let r = 0; r < x.rows; r++) {
      const k = at(inverse, r);
      let dInverse = 0;
      for (let i = 0; i < x.cols; i++) {
        const p = r * x.cols + i;
        bump(w.grad, i, at(y.grad, p) * at(x.data, p) * k);
        dInverse += at(y.grad, p) * at(w.data, i) * at(x.data, p);
      }
      for (let i = 0; i < x.cols; i++) {
        const p = r * x.cols + i;
        // d inverse / d x_i = -x_i inverse³ / cols
        const through = (-dInverse * at(x.data, p) * k ** 3) / x.cols;
        bump(x.grad, p, at(y.grad, p) * at(w.data, i) * k + through);
      }
    }
  });
  return y;
}

/** Rotates pairs (i, i + headDim/2) of every head by position · theta^(-2i/headDim). */
function rotate(tape: Tape, x: Matrix, headDim: number, theta: number): Matrix {
  const y = matrix(x.rows, x.cols);
  const half = headDim / 2;
  const eachPair = (visit: (a: number, b: number, cos: number, sin: number) => void): void => {
    for (let t = 0; t < x.rows; t++) {
      for (let base = 0; base < x.cols; base += headDim) {
        for (let i = 0; i < half; i++) {
          const angle = t * theta ** ((-2 * i) / headDim);
          const a = t * x.cols + base + i;
          visit(a, a + half, Math.cos(angle), Math.sin(angle));
        }
      }
    }
  };
  eachPair((a, b, cos, sin) => {
    y.data[a] = at(x.data, a) * cos - at(x.data, b) * sin;
    y.data[b] = at(x.data, b) * cos + at(x.data, a) * sin;
  });
  tape.push(() => {
    eachPair((a, b, cos, sin) => {
      bump(x.grad, a, at(y.grad, a) * cos + at(y.grad, b) * sin);
      bump(x.grad, b, at(y.grad, b) * cos - at(y.grad, a) * sin);
    });
  });
  return y;
}

function causalAttention(tape: Tape, q: Matrix, k: Matrix, v: Matrix, config: ModelConfig): Matrix {
  const { headCount, kvHeadCount, headDim } = config;
  const group = headCount / kvHeadCount;
  const scale = 1 / Math.sqrt(headDim);
  const y = matrix(q.rows, q.cols);
  const weights = new Map<string, Float64Array>();
  const dot = (a: Float64Array, i: number, b: Float64Array, j: number): number => {
    let sum = 0;
    for (let d = 0; d < headDim; d++) sum += at(a, i + d) * at(b, j + d);
    return sum;
  };
  const qAt = (t: number, h: number): number => t * q.cols + h * headDim;
  const kvAt = (s: number, h: number): number => s * k.cols + Math.floor(h / group) * headDim;
  for (let h = 0; h < headCount; h++) {
    for (let t = 0; t < q.rows; t++) {
      const scores = Float64Array.from(
        { length: t + 1 },
        (_, s) => scale * dot(q.data, qAt(t, h), k.data, kvAt(s, h)),
      );
      const top = Math.max(...scores);
      const exps = scores.map((s) => Math.exp(s - top));
      const total = exps.reduce((a, b) => a + b, 0);
      const p = exps.map((e) => e / total);
      weights.set(`${h}.${t}`, p);
      for (let s = 0; s <= t; s++) {
        for (let d = 0; d < headDim; d++) {
          bump(y.data, qAt(t, h) + d, at(p, s) * at(v.data, kvAt(s, h) + d));
        }
      }
    }
  }
  tape.push(() => {
    for (let h = 0; h < headCount; h++) {
      for (let t = 0; t < q.rows; t++) {
        const p = weights.get(`${h}.${t}`) as Float64Array;
        const dp = p.map((_, s) => dot(y.grad, qAt(t, h), v.data, kvAt(s, h)));
        const mean = p.reduce((sum, value, s) => sum + value * at(dp, s), 0);
        for (let s = 0; s <= t; s++) {
          const dScore = at(p, s) * (at(dp, s) - mean) * scale;
          for (let d = 0; d < headDim; d++) {
            bump(v.grad, kvAt(s, h) + d, at(p, s) * at(y.grad, qAt(t, h) + d));
            bump(q.grad, qAt(t, h) + d, dScore * at(k.data, kvAt(s, h) + d));
            bump(k.grad, kvAt(s, h) + d, dScore * at(q.data, qAt(t, h) + d));
          }
        }
      }
    }
  });
  return y;
}

/** silu(gate) · up */
function swiGlu(tape: Tape, gate: Matrix, up: Matrix): Matrix {
  const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
  const y = matrix(
    gate.rows,
    gate.cols,
    gate.data.map((g, i) => g * sigmoid(g) * at(up.data, i)),
  );
  tape.push(() => {
    for (let i = 0; i < y.data.length; i++) {
      const g = at(gate.data, i);
      const s = sigmoid(g);
      bump(up.grad, i, at(y.grad, i) * g * s);
      bump(gate.grad, i, at(y.grad, i) * at(up.data, i) * s * (1 + g * (1 - s)));
    }
  });
  return y;
}

function embed(tape: Tape, ids: Int32Array, table: Matrix): Matrix {
  const y = matrix(ids.length, table.cols);
  for (const [t, id] of ids.entries()) {
    for (let i = 0; i < y.cols; i++) y.data[t * y.cols + i] = at(table.data, id * y.cols + i);
  }
  tape.push(() => {
    for (const [t, id] of ids.entries()) {
      for (let i = 0; i < y.cols; i++)
        bump(table.grad, id * y.cols + i, at(y.grad, t * y.cols + i));
    }
  });
  return y;
}

const wanted = (weights: Reference64Weights, name: string): Matrix => {
  const parameter = weights.get(name);
  if (parameter === undefined) throw new RangeError(`no parameter ${name}`);
  return parameter;
};

/** Logits [tokens, vocabSize] of one row, with the tape that leads back to the weights. */
function forward(weights: Reference64Weights, config: ModelConfig, ids: Int32Array, tape: Tape) {
  const of = (name: string): Matrix => wanted(weights, name);
  const project = (x: Matrix, p: { weight: string; bias: string | undefined }): Matrix =>
    linear(tape, x, of(p.weight), p.bias === undefined ? undefined : of(p.bias));
  let x = embed(tape, ids, of(embeddingName));
  for (let layer = 0; layer < config.layerCount; layer++) {
    const names = layerParameterNames(config, layer);
    const normed = rmsNorm(tape, x, of(names.inputNorm), config.rmsNormEpsilon);
    const q = rotate(tape, project(normed, names.q), config.headDim, config.ropeTheta);
    const k = rotate(tape, project(normed, names.k), config.headDim, config.ropeTheta);
    const mixed = causalAttention(tape, q, k, project(normed, names.v), config);
    const middle = add(tape, x, linear(tape, mixed, of(names.o)));
    const second = rmsNorm(tape, middle, of(names.postNorm), config.rmsNormEpsilon);
    const gated = swiGlu(
      tape,
      linear(tape, second, of(names.gate)),
      linear(tape, second, of(names.up)),
    );
    x = add(tape, middle, linear(tape, gated, of(names.down)));
  }
  const final = rmsNorm(tape, x, of(finalNormName), config.rmsNormEpsilon);
  return linear(tape, final, of(headName(config)));
}

export function referenceLogits(
  weights: Reference64Weights,
  config: ModelConfig,
  ids: Int32Array,
): Float64Array[] {
  const logits = forward(weights, config, ids, []);
  return Array.from(ids, (_, t) => logits.data.slice(t * logits.cols, (t + 1) * logits.cols));
}

/**
 * Per-token logprobs of one row; entry 0 is NaN. With `gradientOf`, also adds the gradient of
 * Σ gradient · logprob to the weights' `grad`.
 */
export function referenceRow(
  weights: Reference64Weights,
  config: ModelConfig,
  ids: Int32Array,
  temperature: number,
  gradientOf?: (logprobs: Float64Array) => ArrayLike<number>,
): Float64Array {
  const tape: Tape = [];
  const logits = forward(weights, config, ids, tape);
  const V = logits.cols;
  const logprobs = new Float64Array(ids.length).fill(Number.NaN);
  const probabilities: Float64Array[] = [];
  for (let t = 0; t + 1 < ids.length; t++) {
    const row = logits.data.slice(t * V, (t + 1) * V).map((z) => z / temperature);
    const top = Math.max(...row);
    const total = row.reduce((sum, z) => sum + Math.exp(z - top), 0);
    probabilities.push(row.map((z) => Math.exp(z - top) / total));
    logprobs[t + 1] = at(row, ids[t + 1] as number) - top - Math.log(total);
  }
  if (gradientOf === undefined) return logprobs;
  const g = gradientOf(logprobs);
  for (const [t, p] of probabilities.entries()) {
    const pull = g[t + 1] as number;
    for (let v = 0; v < V; v++) {
      const isTarget = v === ids[t + 1] ? 1 : 0;
      logits.grad[t * V + v] = (pull * (isTarget - at(p, v))) / temperature;
    }
  }
  for (const step of tape.toReversed()) step();
  return logprobs;
}

/** AdamW as in its paper (Loshchilov and Hutter, algorithm 2) with PyTorch's clipping before it. */
export function referenceAdamW(
  weights: Reference64Weights,
  moments: Map<string, { m: Float64Array; v: Float64Array }>,
  stepCount: number,
  settings: {
    readonly learningRate: number;
    readonly beta1: number;
    readonly beta2: number;
    readonly epsilon: number;
    readonly weightDecay: number;
    readonly maxGradNorm?: number;
  },
): number {
  let squares = 0;
  for (const w of weights.values()) for (const g of w.grad) squares += g * g;
  const norm = Math.sqrt(squares);
  const clip = Math.min(1, (settings.maxGradNorm ?? Number.POSITIVE_INFINITY) / (norm + 1e-6));
  for (const [name, w] of weights) {
    const size = w.data.length;
    const { m, v } = moments.get(name) ?? { m: new Float64Array(size), v: new Float64Array(size) };
    moments.set(name, { m, v });
    for (let i = 0; i < size; i++) {
      const g = at(w.grad, i) * clip;
      m[i] = settings.beta1 * at(m, i) + (1 - settings.beta1) * g;
      v[i] = settings.beta2 * at(v, i) + (1 - settings.beta2) * g * g;
      const mHat = at(m, i) / (1 - settings.beta1 ** stepCount);
      const vHat = at(v, i) / (1 - settings.beta2 ** stepCount);
      const update = mHat / (Math.sqrt(vHat) + settings.epsilon);
      w.data[i] = at(w.data, i) * (1 - settings.learningRate * settings.weightDecay);
      bump(w.data, i, -settings.learningRate * update);
    }
    w.grad.fill(0);
  }
  return norm;
}
