/**
 * What the sidecar costs over a bare Node `http` + undici relay, in the same run:
 *   npx tsx bench/sidecar.ts [--quick] [--only request,chunk,latency,memory,start] [--profile FOLDER]
 *     [--shared-cores]
 * The engine, the baseline and the sidecar are processes of their own on loopback; CPU is what the
 * kernel charged to the process (user + system), blocks of both in turn, medians reported.
 */
import { type ChildProcess, execFileSync, fork, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { seededRandom } from "../core/assembly/testing/random.ts";
import {
  bundleImage,
  cpuMicroseconds,
  type ImageProcess,
  rssBytes,
  startImage,
} from "./sidecar/image-process.ts";
import { call, callMany, type LoadRequest, percentile } from "./sidecar/load.ts";

interface Child {
  readonly port: number;
  readonly process: ChildProcess;
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

async function start(name: string, args: readonly string[]): Promise<Child> {
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
  const child = fork(bundle, args);
  children.push(child);
  const { port } = await new Promise<{ readonly port: number }>((resolve, reject) => {
    child.once("message", (value) => resolve(value as { readonly port: number }));
    child.once("exit", (code) => reject(new Error(`${name} ended with ${code}`)));
  });
  return { port, process: child };
}

async function cpuPerCall(child: Child, load: LoadRequest, count: number): Promise<number> {
  const pid = child.process.pid as number;
  const before = cpuMicroseconds(pid);
  await callMany(child.port, load, count, 20);
  return (cpuMicroseconds(pid) - before) / count;
}

const median = (values: readonly number[]): number => percentile(values, 0.5);

/**
 * Engine and load on the first core, relay and sidecar on the second: what they take is then not
 * the price of what the others leave in their caches, and chunks come one by one, as they do from
 * an engine. With `--shared-cores`, or without `taskset`, all run anywhere.
 */
function pinApart(engine: Child, ...measured: readonly Child[]): boolean {
  const pin = (core: number, pid: number | undefined): void => {
    execFileSync("taskset", ["-apc", String(core), String(pid)], { stdio: "ignore" });
  };
  if (process.argv.includes("--shared-cores")) return false;
  try {
    for (const pid of [process.pid, engine.process.pid]) pin(0, pid);
    for (const child of measured) pin(1, child.process.pid);
    return true;
  } catch {
    return false;
  }
}

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

/**
 * Calls that go straight to the engine, through the bare relay, and through the sidecar, in turn:
 * 50 streams are open at any time. Answers differ in length and start apart: calls that began at
 * one moment would each wait for those before it, and that queue would be measured.
 */
async function latency(engine: Child, baseline: Child, sidecar: Child): Promise<unknown> {
  const random = seededRandom(1);
  const ways = [engine, baseline, sidecar].map(({ port }) => ({
    port,
    firstByteMs: [] as number[],
    chunkDelaysMs: [] as number[],
  }));
  // The JIT compiles what is hot only after some thousand requests.
  for (const { port } of [baseline, sidecar])
    await callMany(port, { stream: true, tokens: 20 }, 3_000, 20);
  const worker = async (index: number): Promise<void> => {
    await new Promise((resolve) => setTimeout(resolve, random.below(600)));
    for (let turn = 0; turn < (isQuick ? 12 : 60); turn += 1) {
      const way = ways[(index + turn) % 3] as (typeof ways)[number];
      const load = { stream: true, tokens: 10 + random.below(30), pauseMs: 20 };
      const measured = await call(way.port, load);
      way.firstByteMs.push(measured.firstByteMs);
      way.chunkDelaysMs.push(...measured.chunkDelaysMs);
    }
  };
  await Promise.all(Array.from({ length: 50 }, (_, index) => worker(index)));
  const [direct, bare, ours] = ways as unknown as readonly [Way, Way, Way];
  return {
    streams: 50,
    calls: ours.firstByteMs.length,
    firstByteMs: compareDelays(direct.firstByteMs, bare.firstByteMs, ours.firstByteMs),
    chunkDelayMs: compareDelays(direct.chunkDelaysMs, bare.chunkDelaysMs, ours.chunkDelaysMs),
  };
}

interface Way {
  readonly firstByteMs: readonly number[];
  readonly chunkDelaysMs: readonly number[];
}

function compareDelays(
  direct: readonly number[],
  bare: readonly number[],
  ours: readonly number[],
): unknown {
  const added = (through: readonly number[], fraction: number): number =>
    round(percentile(through, fraction) - percentile(direct, fraction));
  return {
    directP50: round(percentile(direct, 0.5)),
    directP99: round(percentile(direct, 0.99)),
    bareRelayAddsP50: added(bare, 0.5),
    bareRelayAddsP99: added(bare, 0.99),
    sidecarAddsP50: added(ours, 0.5),
    sidecarAddsP99: added(ours, 0.99),
  };
}

/** Least-squares slope of y over x, with its standard error. */
function slope(points: readonly (readonly [number, number])[]): {
  readonly value: number;
  readonly standardError: number;
} {
  const mean = (axis: 0 | 1): number => points.reduce((s, p) => s + p[axis], 0) / points.length;
  const [x, y] = [mean(0), mean(1)];
  const spread = points.reduce((s, p) => s + (p[0] - x) ** 2, 0);
  const value = points.reduce((s, p) => s + (p[0] - x) * (p[1] - y), 0) / spread;
  const left = points.reduce((s, p) => s + (p[1] - y - value * (p[0] - x)) ** 2, 0);
  return { value, standardError: Math.sqrt(left / (points.length - 2) / spread) };
}

const mib = (bytes: number): number => round(bytes / 2 ** 20);

/** Largest resident memory while 200 streams are open, each 100 chunks in 5 s. */
async function rssWithStreams(sidecar: ImageProcess): Promise<number> {
  let largest = 0;
  const timer = setInterval(() => {
    largest = Math.max(largest, sidecar.rssBytes());
  }, 100);
  await callMany(sidecar.port, { stream: true, tokens: 100, pauseMs: 50 }, 200, 200);
  clearInterval(timer);
  return largest;
}

/** An HTTP server of Node that does nothing: what no sidecar can be below. */
async function idleNodeRss(): Promise<number> {
  const child = spawn(
    process.execPath,
    ["-e", 'require("http").createServer().listen(0, "127.0.0.1", () => console.log("up"))'],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  children.push(child);
  await new Promise((resolve) => child.stdout.once("data", resolve));
  const rss = rssBytes(child.pid as number);
  child.kill("SIGKILL");
  return rss;
}

/** What ships, as the image runs it, with a controller that does not answer: all is spooled. */
async function startSidecar(engine: Child, spool: string): Promise<ImageProcess> {
  const sidecar = await startImage(
    bundleImage(folder),
    [
      "--engine",
      `http://127.0.0.1:${engine.port}/v1`,
      "--rollout-id",
      "bench",
      "--controller",
      "127.0.0.1:9",
      "--spool-dir",
      join(folder, spool),
    ],
    profileFolder === undefined ? [] : ["--cpu-prof", "--cpu-prof-dir", profileFolder],
  );
  children.push(sidecar.process);
  return sidecar;
}

async function memory(engine: Child): Promise<unknown> {
  const sidecar = await startSidecar(engine, "memory-spool");
  const idle = sidecar.rssBytes();
  const fresh = await rssWithStreams(sidecar);
  const total = isQuick ? 20_000 : 100_000;
  const points: [number, number][] = [];
  for (let done = 0; done < total; done += total / 40) {
    await callMany(sidecar.port, { stream: false, tokens: 16 }, total / 40, 50);
    points.push([(done + total / 40) / 1000, sidecar.rssBytes() / 1024]);
  }
  // The first quarter warms up: code is compiled, the tables of earlier calls fill to their bounds.
  const settled = points.slice(points.length / 4);
  const { value, standardError } = slope(settled);
  const worn = await rssWithStreams(sidecar);
  await sidecar.kill();
  return {
    idleNodeMiB: mib(await idleNodeRss()),
    idleMiB: mib(idle),
    with200StreamsMiB: mib(fresh),
    requests: total,
    afterQuarterMiB: round((settled[0]?.[1] ?? 0) / 1024),
    afterAllMiB: round((settled.at(-1)?.[1] ?? 0) / 1024),
    slopeKiBPer1000Requests: round(value),
    slopeStandardError: round(standardError),
    with200StreamsAfterwardsMiB: mib(worn),
  };
}

async function startUp(): Promise<unknown> {
  const bundle = bundleImage(folder);
  const alone = ["--capture-file", join(folder, "calls.jsonl")];
  const withController = ["--controller", "127.0.0.1:9", "--spool-dir", join(folder, "start")];
  const measure = async (...args: string[]): Promise<unknown> => {
    const times: number[] = [];
    for (let index = 0; index < 11; index += 1) {
      const sidecar = await startImage(bundle, ["--engine", "http://127.0.0.1:9/v1", ...args]);
      times.push(sidecar.listeningMs);
      await sidecar.kill();
    }
    return { listeningMsMedian: round(median(times)), listeningMsMin: round(Math.min(...times)) };
  };
  return {
    withCaptureFile: await measure(...alone),
    withController: await measure(...withController),
  };
}

async function main(): Promise<void> {
  const wants = (name: string): boolean => only === undefined || only.has(name);
  const engine = await start("engine", []);
  if (wants("memory")) results["memory"] = await memory(engine);
  if (wants("start")) results["startUp"] = await startUp();
  if (["request", "chunk", "latency"].some(wants)) await compare(engine, wants);
  console.log(JSON.stringify(results, null, 2));
}

/** Against the bare relay and the engine itself. */
async function compare(engine: Child, wants: (name: string) => boolean): Promise<void> {
  const baseline = await start("bare-relay", [`http://127.0.0.1:${engine.port}`]);
  const sidecar = await startSidecar(engine, "spool");
  if (wants("latency")) results["latency"] = await latency(engine, baseline, sidecar);
  if (wants("request") || wants("chunk"))
    results["arePinned"] = pinApart(engine, baseline, sidecar);
  if (wants("request")) {
    const small = { stream: false, tokens: 16 };
    results["cpuPerRequest"] = await compareCpu(baseline, sidecar, small, 2_000, 1);
  }
  if (wants("chunk")) {
    const streamed = { stream: true, tokens: 200 };
    results["cpuPerChunk"] = await compareCpu(baseline, sidecar, streamed, 100, 200);
  }
  await (profileFolder === undefined ? sidecar.kill() : sidecar.stop());
}

try {
  await main();
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
process.exit(0);
