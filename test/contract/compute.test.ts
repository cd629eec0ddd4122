import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Compute } from "../../backends/native/compute/compute.ts";
import type { ModelConfig } from "../../backends/native/model/model-config.ts";
import type { NamedWeights } from "../../backends/native/model/named-weights.ts";
import {
  adamW,
  fixtureGradient,
  fixtureRows,
  fixtureWeights,
  gradientAt,
  largestDifference,
  largestMagnitude,
  llamaConfig,
  qwenConfig,
  relativeDifference,
} from "./compute-fixtures.ts";
import { computeImplementations, skippedImplementations } from "./compute-implementations.ts";
import {
  type Reference64Weights,
  reference64Weights,
  referenceAdamW,
  referenceLogits,
  referenceRow,
} from "./compute-reference.ts";

const rows = fixtureRows([5, 1, 9, 23, 2, 9, 33]);
/** Where any rows do. */
const fewRows = rows.slice(0, 3);
/** For decoding alone: longer than the cache starts with. */
const longRow = fixtureRows([80])[0] as Int32Array;
const temperature = 0.8;

/** Reference logprobs, and gradients left in `weights`. */
const referenceBackward = (weights: Reference64Weights, config: ModelConfig): Float64Array[] =>
  rows.map((row, r) =>
    referenceRow(weights, config, row, temperature, (lp) => lp.map((_, t) => gradientAt(r, t))),
  );

const gradientsOf = (weights: Reference64Weights) =>
  new Map(Array.from(weights, ([name, w]) => [name, { data: w.grad.slice() }]));

for (const { name, reason } of skippedImplementations) it.skip(`${name} (${reason})`);

const cases = computeImplementations.flatMap((implementation) =>
  [qwenConfig, llamaConfig].map((config) => ({
    name: `${implementation.name}, ${config.architecture}`,
    config,
    implementation,
  })),
);

describe.each(cases)("Compute: $name", ({ config, implementation }) => {
  const weights = fixtureWeights(config);
  let compute: Compute;
  const reset = async (): Promise<void> => {
    await compute.setWeights(weights);
    compute.clearGradients();
  };
  beforeAll(async () => {
    compute = await implementation.open(config, weights);
  });
  afterAll(() => compute.close());

  it("says what it really runs on", () => {
    expect(compute.description).toMatchObject(implementation.expected);
    expect(compute.description.version).toMatch(/^\d+\.\d+/);
  });

  it("gives logprobs within 3e-6 of float64, NaN for a row's first token", async () => {
    const reference = reference64Weights(weights);
    const logprobs = await compute.logprobs(rows, temperature);
    for (const [r, row] of rows.entries()) {
      const expected = referenceRow(reference, config, row, temperature);
      expect(largestDifference(logprobs[r] ?? [], expected)).toBeLessThan(3e-6);
      expect(logprobs[r]?.[0]).toBeNaN();
    }
    expect(await compute.logprobs([], 1)).toEqual([]);
  });

  it("gives the gradients of the float64 reference", async () => {
    await reset();
    const reference = reference64Weights(weights);
    const expected = referenceBackward(reference, config);
    let calls = 0;
    await compute.backward(rows, temperature, (logprobs) => {
      calls += 1;
      for (const [r, row] of logprobs.entries()) {
        expect(largestDifference(row, expected[r] ?? [])).toBeLessThan(3e-6);
      }
      return fixtureGradient(logprobs);
    });
    expect(calls).toBe(1);
    const gradients = await compute.gradients();
    expect([...gradients.keys()].toSorted()).toEqual([...weights.keys()].toSorted());
    for (const [name, { data }] of gradientsOf(reference)) {
      expect(largestMagnitude(data), name).toBeGreaterThan(0);
      const difference = largestDifference(gradients.get(name)?.data ?? [], data);
      expect(difference / largestMagnitude(data), name).toBeLessThan(1e-5);
    }
  });

  it("gives the gradient that differences of the objective show, at random parameters", async () => {
    await reset();
    await compute.backward(rows, temperature, fixtureGradient);
    const gradients = await compute.gradients();
    const reference = reference64Weights(weights);
    const objective = (): number => {
      let sum = 0;
      for (const [r, row] of rows.slice(0, 4).entries()) {
        for (const [t, lp] of referenceRow(reference, config, row, temperature).entries()) {
          if (t > 0) sum += gradientAt(r, t) * lp;
        }
      }
      return sum;
    };
    compute.clearGradients();
    await compute.backward(rows.slice(0, 4), temperature, fixtureGradient);
    const some = await compute.gradients();
    expect(relativeDifference(some, gradients)).toBeGreaterThan(0.01);
    const parameters = [...reference].map(([name, w]) => ({ name, data: w.data }));
    fc.assert(
      fc.property(fc.constantFrom(...parameters), fc.nat(), ({ name, data }, pick) => {
        const i = pick % data.length;
        const value = data[i] as number;
        const difference = [1e-5, -1e-5].map((h) => {
          data[i] = value + h;
          return objective();
        });
        data[i] = value;
        const slope = ((difference[0] as number) - (difference[1] as number)) / 2e-5;
        expect(Math.abs((some.get(name)?.data[i] as number) - slope)).toBeLessThan(2e-5);
      }),
      { numRuns: 12, seed: 5 },
    );
  });

  it("takes the same three AdamW steps, loss by loss", async () => {
    await reset();
    const reference = reference64Weights(weights);
    const moments = new Map<string, { m: Float64Array; v: Float64Array }>();
    for (let step = 1; step <= 3; step++) {
      const expected = referenceBackward(reference, config);
      const norm = referenceAdamW(reference, moments, step, adamW);
      const actual: number[] = [];
      await compute.backward(rows, temperature, (logprobs) => {
        for (const [r, row] of logprobs.entries()) {
          for (let t = 1; t < row.length; t++) actual.push((row[t] as number) * gradientAt(r, t));
        }
        return fixtureGradient(logprobs);
      });
      const loss = expected.flatMap((row, r) =>
        Array.from(row.slice(1), (lp, t) => lp * gradientAt(r, t + 1)),
      );
      const total = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);
      expect(total(actual)).toBeCloseTo(total(loss), 4);
      expect((await compute.step(adamW)).gradNorm / norm).toBeCloseTo(1, 5);
      expect(relativeDifference(await compute.weights(), reference)).toBeLessThan(1e-4);
    }
    const state = await compute.optimizerState();
    expect(state.stepCount).toBe(3);
    for (const [name, { m }] of moments) {
      expect(largestDifference(state.firstMoments.get(name)?.data ?? [], m)).toBeLessThan(1e-5);
    }
    expect(largestMagnitude((await compute.gradients()).get("model.norm.weight")?.data ?? [])).toBe(
      0,
    );
  });

  it("goes on from a saved optimizer state exactly as without the break", async () => {
    await reset();
    const train = async (c: Compute): Promise<NamedWeights> => {
      await c.backward(fewRows, 1, fixtureGradient);
      await c.step(adamW);
      return c.weights();
    };
    await train(compute);
    const [saved, state] = [await compute.weights(), await compute.optimizerState()];
    const expected = await train(compute);
    const other = await implementation.open(config, saved);
    await other.setOptimizerState(state);
    expect(relativeDifference(await train(other), expected)).toBe(0);
    await other.close();
  });

  it("gives the same gradient however rows are batched, split or ordered", async () => {
    await reset();
    await compute.backward(rows, temperature, fixtureGradient);
    const whole = await compute.gradients();
    compute.clearGradients();
    for (const [r, row] of [...rows.entries()].toReversed()) {
      await compute.backward([row], temperature, ([logprobs]) => [
        Float32Array.from(logprobs ?? [], (_, t) => gradientAt(r, t)),
      ]);
    }
    expect(relativeDifference(await compute.gradients(), whole)).toBeLessThan(1e-6);
    for (const options of [{ maxBatchTokens: 16 }, { maxBatchTokens: 48, maxKeptFloats: 1 }]) {
      const split = await implementation.open(config, weights, options);
      await split.backward(rows, temperature, fixtureGradient);
      expect(relativeDifference(await split.gradients(), whole)).toBeLessThan(1e-6);
      await split.close();
    }
  });

  it("decodes what the full forward pass gives, in pieces, ragged, with slots reused", async () => {
    await reset();
    const reference = reference64Weights(weights);
    const decodeRows = [...rows, longRow];
    const logits = decodeRows.map((row) => referenceLogits(reference, config, row));
    const decode = await compute.openDecode({ slots: 5, maxLength: 128 });
    const done = new Map<number, { row: number; length: number }>();
    const extend = async (...items: [slot: number, row: number, count: number][]) => {
      const given = items.map(([slot, row, count]) => {
        const from = done.get(slot)?.row === row ? (done.get(slot)?.length ?? 0) : 0;
        done.set(slot, { row, length: from + count });
        return { slot, tokenIds: (decodeRows[row] as Int32Array).subarray(from, from + count) };
      });
      const result = await decode.extend(given);
      for (const [i, [slot, row]] of items.entries()) {
        const length = done.get(slot)?.length as number;
        expect(decode.lengthOf(slot)).toBe(length);
        const expected = logits[row]?.[length - 1] ?? [];
        expect(largestDifference(result[i] ?? [], expected)).toBeLessThan(1e-5);
      }
    };
    await extend([3, 3, 10]);
    await extend([3, 3, 1], [1, 7, 40]);
    await extend([3, 3, 3], [1, 7, 1], [0, 2, 9], [4, 5, 2]);
    await extend([1, 7, 1], [3, 3, 1], [4, 5, 1]);
    await extend([1, 7, 27], [4, 5, 6], [2, 4, 1]);
    expect(decode.lengthOf(1)).toBe(69);
    decode.truncate(1, 33);
    done.set(1, { row: 7, length: 33 });
    await extend([1, 7, 5], [2, 4, 1]);
    decode.truncate(1, 0);
    expect(decode.lengthOf(1)).toBe(0);
    await extend([1, 5, 3], [3, 3, 1]);
    await extend([1, 5, 1]);
    decode.close();
  });

  it("decodes with the weights of the last update", async () => {
    await reset();
    const decode = await compute.openDecode({ slots: 1, maxLength: 32 });
    const tokenIds = (rows[3] as Int32Array).subarray(0, 8);
    await compute.backward(fewRows, 1, fixtureGradient);
    await compute.step(adamW);
    const [logits] = await decode.extend([{ slot: 0, tokenIds }]);
    const reference = reference64Weights(await compute.weights());
    const expected = referenceLogits(reference, config, tokenIds)[7] ?? [];
    expect(largestDifference(logits ?? [], expected)).toBeLessThan(1e-5);
    decode.close();
  });

  it("refuses what does not fit the model, and changes nothing", async () => {
    await reset();
    const long = new Int32Array(config.maxSequenceLength + 1);
    await expect(compute.logprobs([long], 1)).rejects.toMatchObject({ reason: "row-too-long" });
    await expect(compute.logprobs([Int32Array.of(1, 37)], 1)).rejects.toMatchObject({
      reason: "token-out-of-range",
    });
    await expect(compute.logprobs(rows, 0)).rejects.toMatchObject({
      reason: "temperature-invalid",
    });
    await expect(compute.backward(rows, 1, () => [])).rejects.toThrow(/one value per token/);
    const missing = new Map([...weights].slice(1));
    await expect(compute.setWeights(missing)).rejects.toMatchObject({
      reason: "weights-mismatch",
    });
    const extra = new Map([...weights, ["surplus", { shape: [1], data: Float32Array.of(1) }]]);
    await expect(compute.setWeights(extra)).rejects.toThrow(/surplus/);
    await expect(compute.openDecode({ slots: 1, maxLength: 193 })).rejects.toMatchObject({
      reason: "sequence-limit-invalid",
    });
    const decode = await compute.openDecode({ slots: 1, maxLength: 4 });
    const tokenIds = new Int32Array(5);
    await expect(decode.extend([{ slot: 0, tokenIds }])).rejects.toMatchObject({
      reason: "sequence-too-long",
    });
    expect(decode.lengthOf(0)).toBe(0);
    decode.close();
    await expect(decode.extend([{ slot: 0, tokenIds }])).rejects.toMatchObject({
      reason: "decode-closed",
    });
    expect(relativeDifference(await compute.weights(), weights)).toBe(0);
  });

  it("refuses work once closed, and closes once", async () => {
    const other = await implementation.open(config, weights);
    const decode = await other.openDecode({ slots: 1, maxLength: 8 });
    const running = other.logprobs(fewRows, 1);
    await Promise.all([other.close(), other.close()]);
    expect(await running).toHaveLength(fewRows.length);
    await expect(other.logprobs(fewRows, 1)).rejects.toMatchObject({ reason: "compute-closed" });
    const items = [{ slot: 0, tokenIds: Int32Array.of(1) }];
    await expect(decode.extend(items)).rejects.toMatchObject({ reason: "compute-closed" });
    // The others of the process go on.
    expect(await compute.logprobs(fewRows, 1)).toHaveLength(fewRows.length);
  });

  it("refuses a step with a gradient that is not finite, and keeps the weights", async () => {
    await reset();
    await compute.backward(fewRows, 1, (lp) =>
      lp.map((row) => new Float32Array(row.length).fill(Number.NaN)),
    );
    await expect(compute.step(adamW)).rejects.toMatchObject({ reason: "gradient-not-finite" });
    expect(relativeDifference(await compute.weights(), weights)).toBe(0);
    compute.clearGradients();
    await compute.backward(fewRows, 1, fixtureGradient);
    expect((await compute.step(adamW)).gradNorm).toBeGreaterThan(0);
  });
});
