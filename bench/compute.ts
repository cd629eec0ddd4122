import { cpus } from "node:os";
import { pathToFileURL } from "node:url";
import type { Compute } from "../backends/native/compute/compute.ts";
import { selectCompute } from "../backends/native/compute/select-compute.ts";
import type { ModelConfig } from "../backends/native/model/model-config.ts";
import { parameterShapes } from "../backends/native/model/parameter-shapes.ts";
import { randomWeights } from "../backends/native/model/random-weights.ts";

// Trained and sampled tokens per second of each compute library on one model, in one run, so that
// the ratios hold whatever else the machine is doing.
//
//     npx tsx bench/compute.ts [name …]

/** 0.79 M parameters: the size of policy that the calculator example trains. */
export const benchModel: ModelConfig = {
  architecture: "qwen2",
  vocabSize: 512,
  hiddenSize: 128,
  intermediateSize: 344,
  layerCount: 4,
  headCount: 4,
  kvHeadCount: 2,
  headDim: 32,
  maxSequenceLength: 1024,
  ropeTheta: 10_000,
  rmsNormEpsilon: 1e-6,
  tieWordEmbeddings: true,
  hasQkvBias: true,
};

const rowLength = 128;
const promptLength = 48;
const adamW = {
  learningRate: 1e-4,
  beta1: 0.9,
  beta2: 0.999,
  epsilon: 1e-8,
  weightDecay: 0,
  maxGradNorm: 1,
};

interface Sizes {
  readonly rows: number;
  readonly trainRepeats: number;
  readonly slots: number;
  readonly decodeSteps: number;
}

/** TensorFlow.js off the GPU is tens of times slower; it gets less to do, and the same per token. */
const sizesOf = (name: string): Sizes =>
  name.startsWith("ort")
    ? { rows: 32, trainRepeats: 5, slots: 32, decodeSteps: 60 }
    : { rows: 2, trainRepeats: 1, slots: 32, decodeSteps: 2 };

/**
 * Floating-point operations of one trained token: 6 per matrix parameter (2 forward, 4 backward), and
 * attention over half a row on average, 2 products forward and 4 backward.
 */
export function trainedTokenFlops(config: ModelConfig, length: number): number {
  const matrices = parameterShapes(config)
    .filter(
      ({ name, shape }) =>
        shape.length > 1 && (config.tieWordEmbeddings || !name.includes("embed")),
    )
    .reduce((sum, { shape }) => sum + shape.reduce((size, n) => size * n, 1), 0);
  const attention = config.layerCount * config.headCount * config.headDim * (length / 2);
  return 6 * matrices + 12 * attention;
}

export interface ComputeBenchResult {
  readonly name: string;
  readonly library: string;
  readonly device: string;
  readonly threads?: number;
  /** Forward, backward and AdamW, best of the repeats. */
  readonly trainedTokensPerSecond: number;
  /** Trained tokens per second of this process's CPU time, which other processes disturb less. */
  readonly trainedTokensPerCpuSecond: number;
  /** Sustained arithmetic of the training figure, in 10⁹ operations per second. */
  readonly trainedGflops: number;
  readonly sampledTokensPerSecond: number;
  /** One decode step of all slots, best. */
  readonly decodeStepMs: number;
  readonly slots: number;
  readonly prefillTokensPerSecond: number;
}

const tokensOf = (length: number, seed: number): Int32Array =>
  Int32Array.from({ length }, (_, t) => (t * 7 + seed * 13 + 3) % benchModel.vocabSize);

async function timeTraining(compute: Compute, { rows: rowCount, trainRepeats }: Sizes) {
  const rows = Array.from({ length: rowCount }, (_, r) => tokensOf(rowLength, r));
  const once = async (): Promise<void> => {
    await compute.backward(rows, 1, (lp) =>
      lp.map((row) => new Float32Array(row.length).fill(-1 / rowCount)),
    );
    await compute.step(adamW);
  };
  await once();
  const startCpu = process.cpuUsage();
  let bestMs = Number.POSITIVE_INFINITY;
  for (let i = 0; i < trainRepeats; i++) {
    const start = performance.now();
    await once();
    bestMs = Math.min(bestMs, performance.now() - start);
  }
  const { user, system } = process.cpuUsage(startCpu);
  const tokens = rowCount * rowLength;
  return {
    perSecond: (tokens / bestMs) * 1000,
    perCpuSecond: (tokens * trainRepeats) / ((user + system) / 1e6),
  };
}

async function timeDecoding(compute: Compute, { slots, decodeSteps }: Sizes) {
  const decode = await compute.openDecode({ slots, maxLength: rowLength * 2 });
  const all = (tokenIds: (slot: number) => Int32Array) =>
    Array.from({ length: slots }, (_, slot) => ({ slot, tokenIds: tokenIds(slot) }));
  const startPrefill = performance.now();
  await decode.extend(all((slot) => tokensOf(promptLength, slot)));
  const prefillMs = performance.now() - startPrefill;
  let bestMs = Number.POSITIVE_INFINITY;
  const startSteps = performance.now();
  for (let step = 0; step < decodeSteps; step++) {
    const start = performance.now();
    await decode.extend(all((slot) => Int32Array.of((slot + step) % benchModel.vocabSize)));
    bestMs = Math.min(bestMs, performance.now() - start);
  }
  const totalMs = performance.now() - startSteps;
  decode.close();
  return {
    perSecond: ((slots * decodeSteps) / totalMs) * 1000,
    bestMs,
    prefillPerSecond: ((slots * promptLength) / prefillMs) * 1000,
  };
}

async function measure(name: string): Promise<ComputeBenchResult> {
  const sizes = sizesOf(name);
  const { compute } = await selectCompute(name, benchModel, randomWeights(benchModel, { seed: 1 }));
  try {
    const trained = await timeTraining(compute, sizes);
    const sampled = await timeDecoding(compute, sizes);
    const { library, device, threads } = compute.description;
    return {
      name,
      library,
      device,
      ...(threads === undefined ? {} : { threads }),
      trainedTokensPerSecond: trained.perSecond,
      trainedTokensPerCpuSecond: trained.perCpuSecond,
      trainedGflops: (trained.perSecond * trainedTokenFlops(benchModel, rowLength)) / 1e9,
      sampledTokensPerSecond: sampled.perSecond,
      decodeStepMs: sampled.bestMs,
      slots: sizes.slots,
      prefillTokensPerSecond: sampled.prefillPerSecond,
    };
  } finally {
    await compute.close();
  }
}

export interface ComputeBench {
  readonly model: { readonly parameters: number; readonly rowLength: number };
  readonly machine: string;
  readonly results: readonly ComputeBenchResult[];
  /** Trained tokens per second over those of the slowest library of this run. */
  readonly trainedRatios: Readonly<Record<string, number>>;
}

/** One library after the other; names as `--compute` takes them. */
export async function runComputeBench(
  names: readonly string[] = ["ort-cpu", "tfjs-wasm", "tfjs-js"],
): Promise<ComputeBench> {
  const results: ComputeBenchResult[] = [];
  for (const name of names) results.push(await measure(name));
  const slowest = Math.min(...results.map((r) => r.trainedTokensPerSecond));
  const parameters = parameterShapes(benchModel).reduce(
    (sum, { shape }) => sum + shape.reduce((size, n) => size * n, 1),
    0,
  );
  const [cpu] = cpus();
  return {
    model: { parameters, rowLength },
    machine: `${cpus().length} × ${cpu?.model ?? "unknown CPU"}, Node ${process.version}`,
    results,
    trainedRatios: Object.fromEntries(
      results.map((r) => [r.name, r.trainedTokensPerSecond / slowest]),
    ),
  };
}

function print(bench: ComputeBench): void {
  console.log(`${bench.machine}; ${bench.model.parameters} parameters, rows of ${rowLength}`);
  console.table(
    bench.results.map((r) => ({
      compute: r.name,
      threads: r.threads ?? "",
      "trained tok/s": Math.round(r.trainedTokensPerSecond),
      "per CPU s": Math.round(r.trainedTokensPerCpuSecond),
      GFLOP: Number(r.trainedGflops.toFixed(1)),
      "× slowest": Number((bench.trainedRatios[r.name] ?? 1).toFixed(1)),
      "sampled tok/s": Math.round(r.sampledTokensPerSecond),
      [`step of ${r.slots}, ms`]: Number(r.decodeStepMs.toFixed(2)),
      "prefill tok/s": Math.round(r.prefillTokensPerSecond),
    })),
  );
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const names = process.argv.slice(2);
  print(await runComputeBench(names.length === 0 ? undefined : names));
}
