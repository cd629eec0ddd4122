import { randomUUID } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { afterAll, describe, expect, it } from "vitest";
import { superviseSidecar } from "../../bin/supervise-sidecar.ts";
import { loadExperiment } from "../../controller/experiment/load-experiment.ts";
import { readTasks } from "../../controller/experiment/read-tasks.ts";
import { openRunDirectory } from "../../controller/run-directory.ts";
import { runExperiment } from "../../controller/run-experiment.ts";
import { findByEnvironment } from "../../controller/runners/process-identity.ts";
import type { RunObserver } from "../../controller/scheduler/run-observer.ts";
import type { TrainerBackend } from "../../core/trainer-backend.ts";
import { openLog } from "../../runtime/log.ts";
import { startScriptedEngine } from "../conformance/scripted-engine.ts";
import { type VllmOptions, vllmScript } from "../conformance/vllm-script.ts";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const root = mkdtempSync(join(tmpdir(), "outrigger-engine-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const silent: RunObserver = {
  evaluationStarted: () => undefined,
  evaluationProgress: () => undefined,
  evaluationDone: () => undefined,
  stepProgress: () => undefined,
  updateStarted: () => undefined,
  stepDone: () => undefined,
  warning: () => undefined,
};

/** A trainer elsewhere whose policy is served by an engine that is not ours. */
function foreignBackend(policyUrl: string): TrainerBackend {
  const description = {
    kind: "foreign",
    model: "toy",
    compute: "elsewhere",
    maxSequenceLength: 4096,
    losses: ["ppo"],
    corrections: ["none"],
    supportsKl: false,
    supportsRestore: false,
  } as const;
  return {
    describe: async () => description,
    policyEndpoints: async () => [{ url: policyUrl, model: "toy", version: 0 }],
    update: () => Promise.reject(new Error("nothing may be trained here")),
    close: async () => undefined,
  } as Partial<TrainerBackend> as TrainerBackend;
}

describe("a run whose engine cannot be trained with says so before it trains", () => {
  it.each<[string, VllmOptions, RegExp]>([
    ["no token ids", { ids: "none" }, /token ids|ids/],
    ["no logprobs", { logprobs: "none" }, /logprobs/],
  ])("%s", async (name, options, problem) => {
    const engine = await startScriptedEngine(vllmScript(options));
    const home = mkdtempSync(join(root, "run-"));
    const experiment = loadExperiment(await writeTinyExperiment(home));
    const { train, heldOut, idField } = experiment.tasks;
    const directory = openRunDirectory({
      name: experiment.name,
      out: join(home, "run"),
      runsRoot: root,
      isResume: false,
      newIdentity: () => ({
        runId: randomUUID().slice(0, 8),
        name: experiment.name,
        experimentFile: experiment.file,
        seed: 1,
        compute: "auto",
        createdAtMs: Date.now(),
      }),
    });
    const log = openLog({
      level: "info",
      process: "controller",
      file: join(directory.path, "controller.log"),
    });
    const backend = foreignBackend(`${engine.url}/v1`);
    const run = runExperiment({
      experiment,
      tasks: {
        train: await readTasks("tasks.train", train, idField),
        heldOut: heldOut === undefined ? [] : await readTasks("tasks.heldOut", heldOut, idField),
      },
      directory,
      observer: silent,
      log,
      signal: new AbortController().signal,
      environment: process.env,
      now: Date.now,
      startProcesses: async (request) => {
        const now = Date.now;
        const sidecar = await superviseSidecar({ request, readiness: "listening", log, now });
        await sidecar.start();
        return {
          backend,
          sidecarUrl: sidecar.url,
          backendReady: async () => undefined,
          sidecarReady: () => sidecar.whenReady(),
          crashedSince: () => new Set(),
          close: () => sidecar.close(),
        };
      },
      onBackend: () => undefined,
      openDecoder: async () => undefined,
    });
    const error: unknown = await run.catch((cause: unknown) => cause);
    expect(error, name).toMatchObject({ reason: "engine-unusable", origin: "engine" });
    const { message, hint } = error as Error & { hint: string };
    expect(message).toContain(`${engine.url}/v1`);
    expect(message).toMatch(problem);
    expect(hint).toContain("return_token_ids");
    const result = JSON.parse(readFileSync(join(directory.path, "result.json"), "utf8")) as object;
    expect(result).toMatchObject({
      state: "failed",
      error: { reason: "engine-unusable" },
      steps: 0,
    });
    expect(findByEnvironment({ OUTRIGGER_RUN_ID: directory.identity.runId })).toEqual([]);
    directory.release();
    await engine.close();
  });
});
