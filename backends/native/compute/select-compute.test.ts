import { expect, it } from "vitest";
import type { ModelConfig } from "../model/model-config.ts";
import { randomWeights } from "../model/random-weights.ts";
import { explainSelection, selectCompute } from "./select-compute.ts";

const config: ModelConfig = {
  architecture: "llama",
  vocabSize: 11,
  hiddenSize: 8,
  intermediateSize: 12,
  layerCount: 1,
  headCount: 2,
  kvHeadCount: 1,
  headDim: 4,
  maxSequenceLength: 16,
  ropeTheta: 10_000,
  rmsNormEpsilon: 1e-6,
  tieWordEmbeddings: false,
  hasQkvBias: false,
};
const weights = randomWeights(config, { seed: 1 });

it.each([
  ["ort-cpu", "onnxruntime-node", "cpu"],
  ["tfjs-js", "tfjs-js", "js"],
])("opens %s by name and says so", async (name, library, device) => {
  const { compute, reason } = await selectCompute(name, config, weights, { threads: 1 });
  expect(compute.description).toMatchObject({ library, device });
  expect(reason).toBe(`${name}: asked for by name`);
  const [logprobs] = await compute.logprobs([Int32Array.of(1, 2)], 1);
  expect(logprobs?.[1]).toBeLessThan(0);
  await compute.close();
});

it("opens something on every machine", async () => {
  const { compute, reason } = await selectCompute("auto", config, weights, { threads: 1 });
  expect(reason).toContain('the best of "auto"');
  await compute.close();
});

it("never answers with another device than the one asked for", async () => {
  for (const name of ["ort-cuda", "ort-webgpu", "tfjs-node-gpu", "tfjs-node"]) {
    const outcome = await selectCompute(name, config, weights).then(
      async ({ compute }) => {
        const { library, device } = compute.description;
        await compute.close();
        return `${library} ${device}`;
      },
      (error: unknown) => error,
    );
    // Where the machine has the device, it must be the one asked for; else a clear refusal.
    if (typeof outcome === "string") expect(outcome).toMatch(/cuda|webgpu|gpu|tfjs-node/);
    else expect(outcome).toMatchObject({ reason: "compute-unavailable", hint: expect.any(String) });
  }
});

it("passes a model's own errors on instead of trying the next library", async () => {
  const missing = new Map([...weights].slice(1));
  await expect(selectCompute("auto", config, missing)).rejects.toMatchObject({
    reason: "weights-mismatch",
  });
});

it("explains what was passed over", () => {
  const cpu = { name: "ort-cpu", library: "ort", device: "cpu" } as const;
  expect(explainSelection("auto", cpu, false, [])).toBe(
    'ort-cpu: the best of "auto" here (no GPU found)',
  );
  expect(explainSelection("auto", cpu, true, ["onnxruntime on cuda: no library"])).toBe(
    'ort-cpu: the best of "auto" here (onnxruntime on cuda: no library)',
  );
});
