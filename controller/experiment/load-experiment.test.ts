import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { Ajv2020 } from "ajv/dist/2020.js";
import { afterAll, describe, expect, it } from "vitest";
import { parse, stringify } from "yaml";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { loadExperiment } from "./load-experiment.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-experiment-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const minimal = {
  name: "mini",
  tasks: { train: { file: "train.jsonl" }, heldOut: { file: "held-out.jsonl" } },
  harness: { command: ["node", "./harness.mjs"] },
  reward: { verifier: { command: ["node", "./verify.mjs"] } },
  backend: { kind: "native", model: "policy" },
};

function load(value: unknown): ReturnType<typeof loadExperiment> {
  const file = join(folder, "experiment.yaml");
  writeFileSync(file, stringify(value));
  return loadExperiment(file);
}

function problemsOf(value: unknown): string {
  try {
    load(value);
  } catch (error) {
    expect(error).toBeInstanceOf(OutriggerError);
    const { reason, origin, message } = error as OutriggerError;
    expect(reason).toBe("config-invalid");
    expect(origin).toBe("user");
    return message;
  }
  throw new Error("the experiment was accepted");
}

describe("loadExperiment", () => {
  it("fills defaults and makes paths absolute", () => {
    const experiment = load(minimal);
    expect(experiment.tasks.train).toEqual({ file: join(folder, "train.jsonl") });
    expect(experiment.harness.command).toEqual([process.execPath, join(folder, "harness.mjs")]);
    expect(experiment.backend.model).toBe(join(folder, "policy"));
    expect(experiment.algorithm.loss).toEqual({ kind: "ppo", clipLow: 0.8, clipHigh: 1.2 });
    expect(experiment.failurePolicy["infra-error"].maxRequeues).toBe(2);
    expect(experiment.schedule.kind).toBe("sync");
  });

  it("takes another backend's kind in place of the file's, and checks it as if it stood there", () => {
    const file = join(folder, "experiment.yaml");
    writeFileSync(file, stringify(minimal));
    const { backend } = loadExperiment(file, { backend: "tinker" });
    expect(backend).toMatchObject({ kind: "tinker", model: join(folder, "policy"), loraRank: 32 });
    writeFileSync(
      file,
      stringify({ ...minimal, backend: { kind: "tinker", model: "policy", loraRank: 8 } }),
    );
    expect(() => loadExperiment(file, { backend: "native" })).toThrow(/backend.*loraRank/);
  });

  it("finds engines for LoRA adapters beside a server that trains them only", () => {
    const engines = { urls: ["http://127.0.0.1:8000/v1"], adapterDirectory: "adapters" };
    const backend = { kind: "tinker", model: "policy", url: "http://127.0.0.1:8123", engines };
    expect(load({ ...minimal, backend }).backend).toMatchObject({
      engines: { adapterDirectory: join(folder, "adapters") },
    });
    const { url: _url, ...here } = backend;
    expect(problemsOf({ ...minimal, backend: here })).toContain(
      "backend.engines: needs backend.url",
    );
  });

  it("keeps what the failure policy does not change", () => {
    const experiment = load({
      ...minimal,
      failurePolicy: { "timed-out": { reward: -1 }, "infra-error": { maxRequeues: 7 } },
    });
    expect(experiment.failurePolicy["timed-out"]).toMatchObject({
      reward: { kind: "fixed", value: -1 },
      isTrainable: true,
    });
    expect(experiment.failurePolicy["infra-error"]).toMatchObject({
      maxRequeues: 7,
      isTrainable: false,
    });
  });

  it("lists every problem at once, each with its path", () => {
    const message = problemsOf({
      ...minimal,
      name: "Not A Name",
      harness: { command: [], timeoutMS: 5 },
      schedule: { groupSize: 0 },
    });
    expect(message).toContain("  name: ");
    expect(message).toContain("  harness.command: ");
    expect(message).toMatch(/harness: Unrecognized key: "timeoutMS"/);
    expect(message).toContain("  schedule.groupSize: ");
  });

  it.each([
    ["a wrong loss", { algorithm: { loss: { kind: "pppo" } } }, "algorithm.loss.kind"],
    ["a typo inside a choice", { reward: { verifier: { comand: ["x"] } } }, "reward.verifier"],
    ["greedy training", { sampling: { train: { temperature: 0 } } }, "sampling.train.temperature"],
    ["a cut distribution", { sampling: { train: { topP: 0.9 } } }, "sampling.train.topP"],
    ["rewards that nobody may post", { reward: { fromEvents: "last" } }, "reward.fromEvents"],
    ["evaluation without tasks", { tasks: { train: { file: "a" } } }, "tasks.heldOut"],
    ["a bad pattern", { capture: { redact: ["("] } }, "capture.redact.0"],
    ["no reward", { reward: undefined }, "reward: says nothing; give reward.verifier: { command"],
    [
      "a clipping range that holds nothing",
      { algorithm: { loss: { kind: "ppo", clipLow: 1, clipHigh: 1 } } },
      "algorithm.loss.clipLow: 1 is not below clipHigh",
    ],
    [
      "a correction that masks everything",
      { algorithm: { correction: { kind: "mask", min: 2, max: 2 } } },
      "algorithm.correction.min: 2 is not below max",
    ],
    [
      "a task that would replace the sidecar's URL",
      { harness: { ...minimal.harness, fromTask: { OPENAI_BASE_URL: "url" } } },
      "harness.fromTask.OPENAI_BASE_URL: OPENAI_BASE_URL points the harness at the sidecar",
    ],
    [
      "a task that would replace PATH",
      { harness: { ...minimal.harness, fromTask: { PATH: "path" } } },
      "harness.fromTask.PATH: ",
    ],
    [
      "a task that would say who the attempt is",
      { harness: { ...minimal.harness, fromTask: { OUTRIGGER_ATTEMPT_ID: "id" } } },
      "harness.fromTask.OUTRIGGER_ATTEMPT_ID: ",
    ],
    ["an unknown end reason", { failurePolicy: { crashed: {} } }, "failurePolicy"],
    ["an unknown backend", { backend: { kind: "nativ", model: "x" } }, "backend.kind"],
  ])("refuses %s and names %s", (_name, over, path) => {
    expect(problemsOf({ ...minimal, ...over })).toContain(`  ${path}`);
  });

  it("says so when the file is missing or no mapping", () => {
    expect(() => loadExperiment(join(folder, "absent.yaml"))).toThrow(/cannot read .*absent\.yaml/);
    const list = join(folder, "list.yaml");
    writeFileSync(list, "- a\n");
    expect(() => loadExperiment(list)).toThrow(/must be a mapping/);
  });
});

describe("schema/experiment.schema.json", () => {
  const path = join(import.meta.dirname, "../../schema/experiment.schema.json");

  it("accepts the example and refuses a wrong field", () => {
    const validate = new Ajv2020({ strict: false }).compile(
      JSON.parse(readFileSync(path, "utf8")) as object,
    );
    const example = parse(
      readFileSync(join(import.meta.dirname, "../../examples/calculator/experiment.yaml"), "utf8"),
    ) as object;
    expect(validate(example), JSON.stringify(validate.errors)).toBe(true);
    expect(validate({ ...example, shedule: {} })).toBe(false);
  });
});
