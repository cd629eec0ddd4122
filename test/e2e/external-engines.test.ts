import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { openOrtCompute } from "../../backends/native/compute/ort/open-ort-compute.ts";
import { loadPolicyModel } from "../../backends/native/model/load-model.ts";
import { openPolicyProxy } from "../../backends/tinker/policy-proxy.ts";
import {
  startTinkerServer,
  type TinkerServer,
} from "../../backends/tinker/server/start-tinker-server.ts";
import { tinkerServerConfigSchema } from "../../backends/tinker/server/tinker-server-config.ts";
import { openTinkerClient, type TinkerClient } from "../../backends/tinker/tinker-client.ts";
import type { RunResult } from "../../controller/report/build-result.ts";
import { openLog } from "../../runtime/log.ts";
import { withArchives } from "../fakes/tinker-archives.ts";
import { openVllmLora, type VllmLora } from "../fakes/vllm-lora.ts";
import { writeTinyExperiment, writeTinyModel } from "./tiny-experiment.ts";

const outrigger = resolve(import.meta.dirname, "../../bin/outrigger.js");
const log = openLog({ level: "silent", process: "test" });
let directory: string;
let trainer: TinkerServer;
let client: TinkerClient;
let vllm: VllmLora;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), "external-engines-"));
  await writeTinyModel(join(directory, "model"));
  trainer = await startTinkerServer({
    config: tinkerServerConfigSchema.parse({
      model: join(directory, "model"),
      state: join(directory, "saved"),
      holdMs: 1_000,
    }),
    log,
    openCompute: async (model, weights) => ({
      compute: await openOrtCompute(model.config, weights, { threads: 1 }),
      reason: "the test's",
    }),
    wrap: withArchives,
  });
  client = openTinkerClient({ url: trainer.url, log });
  const model = await loadPolicyModel(join(directory, "model"));
  // Each adapter samples with the very weights that it was made of.
  vllm = await openVllmLora({
    baseModel: "model",
    // It restarts right after it has loaded the second version, and knows no adapter any more.
    onLoaded: () => {
      if (vllm.events.length === 2) vllm.forget();
    },
    openPolicy: (config, name) =>
      openPolicyProxy({
        client,
        model,
        modelName: name,
        host: "127.0.0.1",
        port: 0,
        log,
        concurrency: 16,
        maxWaiting: 64,
        maxLength: () => 512,
        served: () => ({ path: String(config["sampler_path"]), version: 0 }),
        republish: async () => undefined,
      }),
  });
});
afterAll(async () => {
  await vllm.close();
  await client.close();
  await trainer.close();
  rmSync(directory, { recursive: true });
});

it("trains with vLLM engines that others run: each version is a LoRA adapter of its own", async () => {
  const file = await writeTinyExperiment(join(directory, "tiny"), {
    schedule: { steps: 3, groupsPerStep: 1, groupSize: 4 },
    evaluation: { before: false, after: false },
    backend: {
      kind: "tinker",
      url: trainer.url,
      flags: [],
      engines: { urls: [vllm.url], adapterDirectory: "adapters" },
    },
  });
  const out = join(directory, "out");
  const child = spawn(process.execPath, [outrigger, "run", file, "--out", out], {
    stdio: ["ignore", "inherit", "inherit"],
  });
  expect(await new Promise<number | null>((go) => child.once("exit", go))).toBe(0);

  const result = JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as RunResult;
  expect(result).toMatchObject({ state: "done", steps: 3, policyVersion: 3 });
  expect(result.calls.incomplete).toBe(0);
  // What was sampled is of the weights that were trained, version by version.
  expect(result.logprobGap?.maxAbs).toBeLessThan(1e-4);
  const loads = vllm.events.filter((event) => event.startsWith("+")).map((event) => event.slice(1));
  // Four versions, each under a name of its own; one of them twice, for the restart.
  expect(new Set(loads).size).toBe(4);
  expect(loads.length).toBe(5);
  expect(loads.map((name) => /-v(\d)-\d+$/.exec(name)?.[1])).toEqual(["0", "1", "1", "2", "3"]);
  // Harness calls name the adapter of their version.
  expect(new Set(vllm.sampled)).toEqual(new Set(loads));
  const salted = vllm.sampled.filter((name, i) => vllm.salts[i] === name);
  expect(salted.length).toBeGreaterThanOrEqual(result.calls.captured);
  expect(vllm.salts.every((salt, i) => salt === undefined || salt === vllm.sampled[i])).toBe(true);
  expect(existsSync(join(directory, "tiny", "adapters", loads.at(-1) as string))).toBe(true);
  expect(readdirSync(join(directory, "tiny", "adapters")).length).toBeLessThanOrEqual(4);
});
