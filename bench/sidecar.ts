/**
 * What the sidecar costs over a bare Node `http` + undici relay, in the same run:
 *   npx tsx bench/sidecar.ts [--quick] [--only request,chunk,latency,memory,start] [--profile FOLDER]
 * The engine, the baseline and the sidecar are processes of their own on loopback; CPU is what the
 * kernel charged to the process (user + system), blocks of both in turn, medians reported.
 */
import { type ChildProcess, fork, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { call, callMany, type LoadRequest, percentile } from "./sidecar/load.ts";

interface Usage {
  readonly cpu: { readonly user: number; readonly system: number };
  readonly memory: { readonly rss: number; readonly heapUsed: number };
}

interface Child {
  readonly port: number;
  readonly process: ChildProcess;
  usage(gc?: boolean): Promise<Usage>;
}

const folder = mkdtempSync(join(tmpdir(), "outrigger-bench-"));
const children: ChildProcess[] = [];
const isQuick = process.argv.includes("--quick");
const onlyAt = process.argv.indexOf("--only");
const only = onlyAt === -1 ? undefined : new Set(process.argv[onlyAt + 1]?.split(","));
const profileAt = process.argv.indexOf("--profile");
/** Where the sidecar leaves its CPU profile. */
const profileFolder = profileAt === -1 ? undefined : process.argv[profileAt + 1];
const results: Record<string, unknown> = {};

async function start(
  name: string,
  args: readonly string[],
  nodeArgs: string[] = [],
): Promise<Child> {
  const source = fileURLToPath(new URL(`sidecar/${name}.ts`, import.meta.url));
  const bundle = join(folder, `${name}.mjs`);
  await build({
    entryPoints: [source],
    outfile: bundle,
    bundle: true,
    platform: "node",
    target: "node20",
    format: "esm",
    banner: {
      js: 'import { createRequire as __cr } from "node:module"; const require = __cr(import.meta.url);',
    },
    logLevel: "warning",
  });
  const child = fork(bundle, args, { execArgv: nodeArgs });
  children.push(child);
  const message = <T>(): Promise<T> =>
    new Promise((resolve, reject) => {
      child.once("message", (value) => resolve(value as T));
      child.once("exit", (code) => reject(new Error(`${name} ended with ${code}`)));
    });
  const { port } = await message<{ port: number }>();
  return {
    port,
    process: child,
    usage: async (gc = false) => {
      const answer = message<Usage>();
      child.send(gc ? "gc" : "usage");
      return answer;
    },
  };
}

async function cpuPerCall(child: Child, load: LoadRequest, count: number): Promise<number> {
  const before = await child.usage();
  await callMany(child.port, load, count, 20);
  const after = await child.usage();
  const microseconds = after.cpu.user + after.cpu.system - before.cpu.user - before.cpu.system;
  return microseconds / count;
}

const median = (values: readonly number[]): number => percentile(values, 0.5);

async function compareCpu(
  baseline: Child,
  sidecar: Child,
  load: LoadRequest,
  count: number,
  per: number,
): Promise<unknown> {
  const rounds = isQuick ? 5 : 11;
  const base: number[] = [];
  const ours: number[] = [];
  // The JIT compiles what is hot only after some thousand requests.
  for (const child of [baseline, sidecar]) await callMany(child.port, load, count * 5, 20);
  for (let round = 0; round < rounds; round += 1) {
    base.push((await cpuPerCall(baseline, load, count)) / per);
    ours.push((await cpuPerCall(sidecar, load, count)) / per);
  }
  const ratios = ours.map((value, index) => value / (base[index] ?? Number.NaN));
  return {
    baselineMicroseconds: round(median(base)),
    sidecarMicroseconds: round(median(ours)),
    ratio: round(median(ratios)),
  };
}

const round = (value: number): number => Math.round(value * 1000) / 1000;

async function latency(engine: Child, sidecar: Child): Promise<unknown> {
  const load = { stream: true, tokens: isQuick ? 10 : 20, pauseMs: 20 };
  const direct: number[] = [];
  const through: number[] = [];
  const directDelays: number[] = [];
  const throughDelays: number[] = [];
  await callMany(sidecar.port, load, 50, 50);
  const worker = async (index: number): Promise<void> => {
    for (let turn = 0; turn < (isQuick ? 8 : 30); turn += 1) {
      const isDirect = (index + turn) % 2 === 0;
      const measured = await call((isDirect ? engine : sidecar).port, load);
      (isDirect ? direct : through).push(measured.firstByteMs);
      (isDirect ? directDelays : throughDelays).push(...measured.chunkDelaysMs);
    }
  };
  await Promise.all(Array.from({ length: 50 }, (_, index) => worker(index)));
  const added = (a: readonly number[], b: readonly number[], fraction: number): number =>
    round(percentile(b, fraction) - percentile(a, fraction));
  return {
    streams: 50,
    firstByteMs: {
      directP50: round(median(direct)),
      sidecarP50: round(median(through)),
      addedP50: added(direct, through, 0.5),
      addedP99: added(direct, through, 0.99),
    },
    chunkDelayMs: {
      directP50: round(median(directDelays)),
      addedP50: added(directDelays, throughDelays, 0.5),
      addedP99: added(directDelays, throughDelays, 0.99),
    },
  };
}

/** Least-squares slope of resident memory over requests, in bytes per 1,000 requests. */
function slope(points: readonly (readonly [number, number])[]): number {
  const mean = (axis: 0 | 1): number => points.reduce((s, p) => s + p[axis], 0) / points.length;
  const [x, y] = [mean(0), mean(1)];
  const top = points.reduce((s, p) => s + (p[0] - x) * (p[1] - y), 0);
  return (1000 * top) / points.reduce((s, p) => s + (p[0] - x) ** 2, 0);
}

async function memory(sidecar: Child): Promise<unknown> {
  const load = { stream: true, tokens: 100, pauseMs: 50 };
  const open = callMany(sidecar.port, load, 200, 200);
  await new Promise((resolve) => setTimeout(resolve, 3_000));
  const withStreams = await sidecar.usage();
  await open;
  const total = isQuick ? 20_000 : 100_000;
  const points: [number, number][] = [];
  for (let done = 0; done < total; done += total / 20) {
    await callMany(sidecar.port, { stream: false, tokens: 16 }, total / 20, 50);
    const usage = await sidecar.usage(true);
    points.push([done + total / 20, usage.memory.rss]);
  }
  const settled = points.slice(points.length / 4);
  return {
    rssWith200StreamsMiB: round(withStreams.memory.rss / 2 ** 20),
    requests: total,
    rssFirstMiB: round((settled[0]?.[1] ?? 0) / 2 ** 20),
    rssLastMiB: round((settled.at(-1)?.[1] ?? 0) / 2 ** 20),
    slopeKiBPer1000Requests: round(slope(settled) / 1024),
  };
}

async function startUp(): Promise<unknown> {
  const bundle = join(folder, "image.mjs");
  const script = fileURLToPath(new URL("../scripts/bundle-sidecar.mjs", import.meta.url));
  await exited(spawn(process.execPath, [script, bundle], { stdio: "inherit" }));
  const times: number[] = [];
  for (let index = 0; index < 7; index += 1) {
    const startedMs = performance.now();
    const child = spawn(
      process.execPath,
      [
        bundle,
        "--port",
        "0",
        "--engine",
        "http://127.0.0.1:9/v1",
        "--capture-file",
        join(folder, "calls.jsonl"),
        "--log-level",
        "silent",
      ],
      { stdio: ["ignore", "pipe", "inherit"] },
    );
    await new Promise((resolve) => child.stdout.once("data", resolve));
    times.push(performance.now() - startedMs);
    child.kill("SIGKILL");
    await exited(child);
  }
  return { listeningMsMedian: round(median(times)), listeningMsMin: round(Math.min(...times)) };
}

function exited(child: ChildProcess): Promise<unknown> {
  return new Promise((resolve) => child.once("exit", resolve));
}

async function main(): Promise<void> {
  const wants = (name: string): boolean => only === undefined || only.has(name);
  const engine = await start("engine", []);
  const baseline = await start("bare-relay", [`http://127.0.0.1:${engine.port}`]);
  const sidecar = await start(
    "sidecar-process",
    [`http://127.0.0.1:${engine.port}/v1`, join(folder, "spool")],
    [
      "--expose-gc",
      ...(profileFolder === undefined ? [] : ["--cpu-prof", "--cpu-prof-dir", profileFolder]),
    ],
  );
  if (wants("request")) {
    const small = { stream: false, tokens: 16 };
    results["cpuPerRequest"] = await compareCpu(baseline, sidecar, small, 2_000, 1);
  }
  if (wants("chunk")) {
    const streamed = { stream: true, tokens: 200 };
    results["cpuPerChunk"] = await compareCpu(baseline, sidecar, streamed, 100, 200);
  }
  if (wants("latency")) results["latency"] = await latency(engine, sidecar);
  if (wants("memory")) results["memory"] = await memory(sidecar);
  if (wants("start")) results["startUp"] = await startUp();
  console.log(JSON.stringify(results, null, 2));
  if (profileFolder === undefined) return;
  sidecar.process.send("stop");
  await exited(sidecar.process);
}

try {
  await main();
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
process.exit(0);
