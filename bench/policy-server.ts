import { mkdtemp, rm } from "node:fs/promises";
import { Agent, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Compute, DecodeSession } from "../backends/native/compute/compute.ts";
import { selectCompute } from "../backends/native/compute/select-compute.ts";
import { type LoadedModel, loadModel } from "../backends/native/model/load-model.ts";
import { PolicyEngine } from "../backends/native/serving/policy-engine.ts";
import { openPolicyServer } from "../backends/native/serving/policy-server.ts";
import { randomStream } from "../backends/native/serving/random-stream.ts";
import { sampleToken } from "../backends/native/serving/sample-token.ts";
import { openLog } from "../runtime/log.ts";
import { writeSmallModel } from "../test/contract/trainer-backend-model.ts";

export interface PolicyServerBenchRow {
  readonly concurrency: number;
  /** Sampled tokens per second: `DecodeSession.extend` and `sampleToken` alone, in a loop. */
  readonly rawTokensPerSecond: number;
  /** Through HTTP, streamed with ids and logprobs, one connection per request in flight. */
  readonly servedTokensPerSecond: number;
  readonly servedShareOfRaw: number;
  /** CPU time of the whole process, the bench's own client included. */
  readonly rawCpuUsPerToken: number;
  readonly servedCpuUsPerToken: number;
}

interface Measured {
  readonly tokensPerSecond: number;
  readonly cpuUsPerToken: number;
}

const repeats = 3;

async function measure(tokens: number, run: () => Promise<void>): Promise<Measured> {
  const cpu = process.cpuUsage();
  const started = performance.now();
  await run();
  const seconds = (performance.now() - started) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return { tokensPerSecond: tokens / seconds, cpuUsPerToken: (user + system) / tokens };
}

/** Of interleaved repeats, the best: what else runs on the machine can only slow one down. */
const best = (all: readonly Measured[]): Measured => ({
  tokensPerSecond: Math.max(...all.map((m) => m.tokensPerSecond)),
  cpuUsPerToken: Math.min(...all.map((m) => m.cpuUsPerToken)),
});

/** 0.85 million parameters, the size of the calculator example. */
const sizes = { hidden_size: 128, intermediate_size: 384, num_hidden_layers: 4 };
const promptLength = 128;
const responseLength = 64;

/**
 * The policy server against the raw decode loop on the same weights in the same run. What is lost
 * is scheduling, JSON, sockets, and the client, which shares the process's CPUs.
 */
export async function runPolicyServerBench(): Promise<readonly PolicyServerBenchRow[]> {
  const directory = await mkdtemp(join(tmpdir(), "policy-server-bench-"));
  try {
    await writeSmallModel(directory, { config: sizes });
    const model = await loadModel(directory);
    const { compute } = await selectCompute("ort-cpu", model.config, model.weights);
    const rows: PolicyServerBenchRow[] = [];
    for (const concurrency of [1, 16, 64]) rows.push(await benchAt(concurrency, compute, model));
    await compute.close();
    return rows;
  } finally {
    await rm(directory, { recursive: true });
  }
}

async function benchAt(
  concurrency: number,
  compute: Compute,
  model: LoadedModel,
): Promise<PolicyServerBenchRow> {
  const rounds = concurrency === 1 ? 4 : 2;
  const tokens = rounds * concurrency * responseLength;
  const session = await compute.openDecode({ slots: concurrency, maxLength: 512 });
  const served = await openServed(compute, model, concurrency);
  await rawLoop(session, concurrency, 1);
  await served.run(1);
  const raw: Measured[] = [];
  const through: Measured[] = [];
  for (let repeat = 0; repeat < repeats; repeat++) {
    raw.push(await measure(tokens, () => rawLoop(session, concurrency, rounds)));
    through.push(await measure(tokens, () => served.run(rounds)));
  }
  await served.close();
  session.close();
  const [r, s] = [best(raw), best(through)];
  return {
    concurrency,
    rawTokensPerSecond: Math.round(r.tokensPerSecond),
    servedTokensPerSecond: Math.round(s.tokensPerSecond),
    servedShareOfRaw: Math.round((s.tokensPerSecond / r.tokensPerSecond) * 1000) / 1000,
    rawCpuUsPerToken: Math.round(r.cpuUsPerToken),
    servedCpuUsPerToken: Math.round(s.cpuUsPerToken),
  };
}

const promptOf = (index: number): number[] =>
  Array.from({ length: promptLength }, (_, i) => (i * 7 + index * 13 + 1) % 251);

async function rawLoop(session: DecodeSession, slots: number, rounds: number): Promise<void> {
  const random = randomStream("bench");
  const sampling = { temperature: 1, topP: 1, topK: 0 };
  for (let round = 0; round < rounds; round++) {
    let logits = await session.extend(
      Array.from({ length: slots }, (_, slot) => {
        session.truncate(slot, 0);
        return { slot, tokenIds: Int32Array.from(promptOf(slot + round * slots)) };
      }),
    );
    for (let token = 0; token < responseLength; token++) {
      const ids = logits.map((row) => sampleToken(row, sampling, random).id);
      if (token + 1 === responseLength) break;
      logits = await session.extend(ids.map((id, slot) => ({ slot, tokenIds: Int32Array.of(id) })));
    }
  }
}

async function openServed(
  compute: Compute,
  model: LoadedModel,
  concurrency: number,
): Promise<{ run(rounds: number): Promise<void>; close(): Promise<void> }> {
  const session = await compute.openDecode({ slots: concurrency, maxLength: 512 });
  const engine = new PolicyEngine({
    session,
    slots: concurrency,
    maxLength: 512,
    version: 0,
    seed: 0,
  });
  const server = await openPolicyServer({
    engine,
    model,
    modelName: "bench",
    host: "127.0.0.1",
    port: 0,
    log: openLog({ level: "error", process: "bench" }),
  });
  let salt = 0;
  return {
    run: async (rounds) => {
      const agent = new Agent({ keepAlive: true, maxSockets: concurrency });
      let left = concurrency * rounds;
      const worker = async (): Promise<void> => {
        // New prompts each time, so that no cached prefix helps.
        while (left-- > 0) await stream(`${server.url}/completions`, promptOf(salt++), agent);
      };
      await Promise.all(Array.from({ length: concurrency }, worker));
      agent.destroy();
    },
    close: async () => {
      server.destroy();
      await engine.destroy();
    },
  };
}

function stream(url: string, prompt: readonly number[], agent: Agent): Promise<void> {
  const body = JSON.stringify({
    prompt,
    max_tokens: responseLength,
    ignore_eos: true,
    stream: true,
    logprobs: 0,
    return_token_ids: true,
  });
  return new Promise((resolve, reject) => {
    const outgoing = request(url, { method: "POST", agent }, (response) => {
      let bytes = 0;
      response.on("data", (part: Buffer) => {
        bytes += part.length;
      });
      response.on("error", reject);
      response.on("end", () => {
        if (response.statusCode === 200 && bytes > 0) resolve();
        else reject(new Error(`status ${response.statusCode}`));
      });
    });
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  console.table(await runPolicyServerBench());
}
