import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AdamWSettings, Compute } from "../../../backends/native/compute/compute.ts";
import { openOrtCompute } from "../../../backends/native/compute/ort/open-ort-compute.ts";
import { type ModelConfig, parseModelConfig } from "../../../backends/native/model/model-config.ts";
import { readModelWeights } from "../../../backends/native/model/read-model-weights.ts";
import { readSafetensors } from "../../../backends/native/model/safetensors.ts";
import { largestDifference, relativeDifference } from "../../contract/compute-fixtures.ts";
import { reference64Weights, referenceRow } from "../../contract/compute-reference.ts";

// Made by make_golden.py in this folder. The models ran in float64, but transformers calculates norms
// and rotary angles in float32 whatever the model's type: hence 5e-6 and not less.

interface Golden {
  readonly temperature: number;
  readonly rows: readonly (readonly number[])[];
  /** Of tokens 1… of each row. */
  readonly logprobs: readonly (readonly number[])[];
  readonly gradientOfLogprobs: readonly (readonly number[])[];
  readonly adamW: AdamWSettings;
  readonly steps: readonly { readonly objective: number; readonly gradNorm: number }[];
  readonly objectiveAfter: number;
}

const readJson = (path: string): unknown => JSON.parse(readFileSync(path, "utf8"));

describe.each(["qwen2", "llama"])("Hugging Face transformers, %s", (name) => {
  const folder = join(import.meta.dirname, name);
  const golden = readJson(join(folder, "golden.json")) as Golden;
  const config: ModelConfig = parseModelConfig(readJson(join(folder, "config.json")), name);
  const rows = golden.rows.map((row) => Int32Array.from(row));
  const gradientOf = (logprobs: readonly Float32Array[]): Float32Array[] =>
    logprobs.map((_, r) => Float32Array.of(0, ...(golden.gradientOfLogprobs[r] ?? [])));
  let compute: Compute;
  beforeAll(async () => {
    const weights = await readModelWeights(folder, config);
    compute = await openOrtCompute(config, weights, { threads: 1 });
  });
  afterAll(() => compute.close());

  const expectLogprobs = (row: ArrayLike<number> | undefined, r: number): void => {
    const expected = golden.logprobs[r] ?? [];
    expect(row?.length).toBe(expected.length + 1);
    for (const [t, value] of expected.entries()) expect(row?.[t + 1]).toBeCloseTo(value, 5);
  };

  it("the checkpoint has the shape that the test is about", () => {
    expect(config).toMatchObject(
      name === "qwen2"
        ? { hasQkvBias: true, tieWordEmbeddings: true, kvHeadCount: 2, ropeTheta: 1_000_000 }
        : { hasQkvBias: false, tieWordEmbeddings: false, headDim: 8, ropeTheta: 10_000 },
    );
  });

  it("agrees in logprobs, and so does our float64 reference", async () => {
    const logprobs = await compute.logprobs(rows, golden.temperature);
    const reference = reference64Weights(await compute.weights());
    for (const [r, row] of rows.entries()) {
      expectLogprobs(logprobs[r], r);
      expectLogprobs(referenceRow(reference, config, row, golden.temperature), r);
    }
  });

  it("agrees in gradients, and so does our float64 reference", async () => {
    const { tensors } = await readSafetensors(join(folder, "gradients.safetensors"));
    compute.clearGradients();
    await compute.backward(rows, golden.temperature, gradientOf);
    expect(relativeDifference(await compute.gradients(), tensors)).toBeLessThan(1e-5);
    compute.clearGradients();
    const reference = reference64Weights(await compute.weights());
    for (const [r, row] of rows.entries()) {
      referenceRow(reference, config, row, golden.temperature, () => [
        0,
        ...(golden.gradientOfLogprobs[r] ?? []),
      ]);
    }
    for (const [parameter, { data }] of tensors) {
      const grad = reference.get(parameter)?.grad ?? new Float64Array();
      expect(largestDifference(grad, data)).toBeLessThan(1e-5);
    }
  });

  it("agrees in the gradient norm and the objective over three AdamW steps", async () => {
    const objectives: number[] = [];
    for (let step = 0; step <= golden.steps.length; step++) {
      await compute.backward(rows, golden.temperature, (logprobs) => {
        const g = gradientOf(logprobs);
        let sum = 0;
        for (const [r, row] of logprobs.entries()) {
          for (let t = 1; t < row.length; t++) sum += (g[r]?.[t] ?? 0) * (row[t] as number);
        }
        objectives.push(sum);
        return g;
      });
      const expected = golden.steps[step];
      if (expected === undefined) break;
      const { gradNorm } = await compute.step(golden.adamW);
      expect(gradNorm / expected.gradNorm).toBeCloseTo(1, 4);
    }
    const expected = [...golden.steps.map((s) => s.objective), golden.objectiveAfter];
    for (const [i, value] of expected.entries()) expect(objectives[i]).toBeCloseTo(value, 3);
    expect(Math.abs((expected[0] ?? 0) - (expected[3] ?? 0))).toBeGreaterThan(0.05);
  });
});
