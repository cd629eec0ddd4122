import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { type NativeBackend, openNativeBackend } from "../../backends/native/native-backend.ts";
import type { TrainingSample } from "../../core/sample.ts";
import { updateSettings } from "../contract/trainer-backend.ts";
import { writeSmallModel } from "../contract/trainer-backend-model.ts";
import { samplePolicy } from "../contract/trainer-backend-policy.ts";

let directory: string;
const children: ChildProcess[] = [];
const clients: NativeBackend[] = [];

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "native-process-"));
  await writeSmallModel(join(directory, "model"));
});
afterEach(async () => {
  for (const client of clients.splice(0)) await client.close();
  for (const child of children.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill("SIGKILL");
    await once(child, "exit");
  }
});
afterAll(() => rm(directory, { recursive: true }));

function spawnNative(flags: Readonly<Record<string, string>>): ChildProcess {
  const given = { model: join(directory, "model"), compute: "ort-cpu", threads: "1", ...flags };
  const child = spawn(
    process.execPath,
    [
      "bin/outrigger.js",
      "backend",
      "native",
      "--exit-with-parent",
      ...Object.entries(given).flatMap(([name, value]) => [`--${name}`, value]),
    ],
    { stdio: ["pipe", "pipe", "pipe"] },
  );
  children.push(child);
  return child;
}

interface Listening {
  readonly grpcPort: number;
  readonly version: number;
  readonly compute: string;
}

async function start(state: string): Promise<{
  child: ChildProcess;
  backend: NativeBackend;
  listening: Listening;
}> {
  const child = spawnNative({ state: join(directory, state), slots: "4" });
  child.stderr?.resume();
  const lines = createInterface({ input: child.stdout! });
  const [line] = (await once(lines, "line")) as [string];
  const listening = JSON.parse(line) as Listening;
  const backend = openNativeBackend({ grpcAddress: `127.0.0.1:${listening.grpcPort}` });
  clients.push(backend);
  return { child, backend, listening };
}

async function fail(
  flags: Readonly<Record<string, string>>,
): Promise<{ code: number; text: string }> {
  const child = spawnNative(flags);
  let text = "";
  child.stderr?.on("data", (part: Buffer) => {
    text += part.toString();
  });
  const [code] = (await once(child, "exit")) as [number];
  return { code, text };
}

async function policySample(backend: NativeBackend, prompt: string): Promise<TrainingSample> {
  const [endpoint] = await backend.policyEndpoints();
  return (await samplePolicy(endpoint!, prompt, { advantage: 1, maxTokens: 6, seed: 1 })).sample;
}

async function greedy(backend: NativeBackend): Promise<number[]> {
  const [endpoint] = await backend.policyEndpoints();
  const options = { advantage: 0, maxTokens: 5, temperature: 0 };
  const { sample } = await samplePolicy(endpoint!, "greedy", options);
  return Array.from(sample.samplingLogprobs.slice(-5));
}

describe("native backend process", () => {
  it("is where it had committed after kill -9 at any moment of an update", async () => {
    let { child, backend, listening } = await start("killed");
    expect(listening).toMatchObject({
      version: 0,
      compute: expect.stringContaining("cpu") as string,
    });
    const samples = await Promise.all(["a", "b", "c"].map((p) => policySample(backend, p)));
    const before = await greedy(backend);
    let version = 0;
    // Later kills reach the step, its write to disk, and the time after it.
    for (const [round, delayMs] of [0, 20, 60, 150].entries()) {
      const update = {
        updateId: `update-${round}`,
        fromVersion: version,
        settings: updateSettings,
        samples,
      };
      const running = backend.update(update).catch((error: unknown) => error);
      await new Promise((resolve) => setTimeout(resolve, delayMs));
      child.kill("SIGKILL");
      await once(child, "exit");
      const outcome = await running;
      ({ child, backend, listening } = await start("killed"));
      const wasApplied = listening.version === version + 1;
      expect([version, version + 1]).toContain(listening.version);
      if (!(outcome instanceof Error)) {
        expect(wasApplied).toBe(true);
        expect(await backend.update(update)).toEqual(outcome);
      } else {
        expect(outcome).toMatchObject({ origin: "backend", retryable: true });
        // Repeating it applies it once, whether the first try was committed or not.
        expect(await backend.update(update)).toMatchObject({ applied: true, version: version + 1 });
      }
      version += 1;
      expect((await backend.describe()).version).toBe(version);
    }
    const after = await greedy(backend);
    expect(Math.abs(after[0]! - before[0]!)).toBeGreaterThan(1e-3);
  });

  it("writes checkpoints that it can start from, and goes on with their weights", async () => {
    const { backend } = await start("trained");
    const samples = [await policySample(backend, "a")];
    await backend.update({ updateId: "one", fromVersion: 0, settings: updateSettings, samples });
    const { location, version } = await backend.checkpoint("final");
    expect(version).toBe(1);
    const trained = await greedy(backend);
    const config = JSON.parse(await readFile(join(location, "config.json"), "utf8")) as object;
    expect(config).toMatchObject({ model_type: "qwen2", torch_dtype: "float32" });
    const child = spawnNative({ model: location, state: join(directory, "from-checkpoint") });
    child.stderr?.resume();
    const [line] = (await once(createInterface({ input: child.stdout! }), "line")) as [string];
    const { grpcPort } = JSON.parse(line) as Listening;
    const again = openNativeBackend({ grpcAddress: `127.0.0.1:${grpcPort}` });
    clients.push(again);
    (await greedy(again)).forEach((v, i) => expect(v).toBeCloseTo(trained[i]!, 5));
  });

  it("drains on SIGTERM and ends with its parent", async () => {
    const first = await start("signal");
    first.child.kill("SIGTERM");
    expect(await once(first.child, "exit")).toEqual([0, null]);
    const second = await start("signal");
    second.child.stdin?.end();
    expect(await once(second.child, "exit")).toEqual([0, null]);
  });

  it("says on the command line what is wrong, and where", async () => {
    const other = join(directory, "other-tokenizer");
    await cp(join(directory, "model"), other, { recursive: true });
    const config = JSON.parse(await readFile(join(other, "config.json"), "utf8")) as object;
    await writeFile(join(other, "config.json"), JSON.stringify({ ...config, vocab_size: 200 }));
    const taken = createServer().listen(0, "127.0.0.1");
    await once(taken, "listening");
    const port = String((taken.address() as AddressInfo).port);
    const state = join(directory, "bad");
    const mismatch = await fail({ model: other, state });
    expect(mismatch.text).toMatch(/tokenizer has ids up to 260.*vocab_size is 200/);
    const inUse = await fail({ "grpc-port": port, state });
    expect(inUse.text).toContain(`cannot listen on 127.0.0.1:${port}`);
    taken.close();
    for (const { code, text } of [mismatch, inUse]) {
      expect(code).not.toBe(0);
      expect(text).not.toMatch(/^\s+at /m);
    }
  });
});
