import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import process from "node:process";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { findByEnvironment } from "../../controller/runners/process-identity.ts";
import type { StepMetrics } from "../../controller/scheduler/step-metrics.ts";
import { openRunStores, type RunStores } from "../../controller/store/open-run-stores.ts";
import { type Overrides, writeTinyExperiment } from "./tiny-experiment.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");
const root = mkdtempSync(join(tmpdir(), "outrigger-bad-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

interface Ended {
  readonly code: number | null;
  readonly output: string;
}

function outrigger(...args: readonly string[]): Promise<Ended> {
  const child = spawn(process.execPath, [executable, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (chunk: Buffer) => {
      output += chunk.toString();
    });
  }
  return new Promise((done) => child.once("close", (code) => done({ code, output })));
}

let cases = 0;
async function experiment(
  over: Overrides = {},
  files: Readonly<Record<string, string>> = {},
): Promise<{ readonly folder: string; readonly file: string; readonly out: string }> {
  const folder = join(root, String(++cases));
  mkdirSync(folder);
  return { folder, file: await writeTinyExperiment(folder, over, files), out: join(folder, "run") };
}

describe("what is wrong before anything starts", () => {
  it("wrong fields: every one is named, exit code 2", async () => {
    const { file } = await experiment({ schedule: { stepz: 3 }, harness: { timeoutMs: "soon" } });
    const { code, output } = await outrigger("run", file);
    expect(code, output).toBe(2);
    expect(output).toContain('schedule: Unrecognized key: "stepz"');
    expect(output).toContain("harness.timeoutMs: ");
    expect(output).toContain("config-invalid (user)");
  });

  it("files that are not there: each with the path of its field", async () => {
    const { file } = await experiment({
      harness: { command: ["node", "./absent.mjs"] },
      reward: { verifier: { command: ["no-such-program"] } },
      backend: { model: "absent-policy" },
    });
    const { code, output } = await outrigger("run", file);
    expect(code, output).toBe(2);
    expect(output).toContain("harness.command.1: ");
    expect(output).toContain("reward.verifier.command.0: no program no-such-program was found");
    expect(output).toContain("backend.model: ");
  });

  it("tasks: the line that is no JSON, and the task without a field", async () => {
    const broken = await experiment({}, { "train.jsonl": '{"id": 1, "question": "a"}\n{oops\n' });
    const first = await outrigger("run", broken.file);
    expect(first.code).toBe(2);
    expect(first.output).toMatch(/tasks\.train: .*train\.jsonl, line 2: /);
    const lacking = await experiment({}, { "train.jsonl": '{"id": "x1", "text": "a"}\n' });
    const second = await outrigger("run", lacking.file);
    expect(second.code).toBe(2);
    expect(second.output).toContain("task x1: no field question (harness.fromTask.QUESTION)");
  });

  it("a directory that holds a run already, and one that holds none", async () => {
    const { file, out } = await experiment();
    mkdirSync(out);
    const missing = await outrigger("run", file, "--resume", "--out", out);
    expect(missing.code).toBe(2);
    expect(missing.output).toContain("run-missing");
    const identity = {
      runId: "r",
      name: "tiny",
      experimentFile: file,
      seed: 3,
      compute: "auto",
      createdAtMs: 0,
    };
    writeFileSync(join(out, "run.json"), JSON.stringify(identity));
    const taken = await outrigger("run", file, "--out", out);
    expect(taken.code).toBe(2);
    expect(taken.output).toContain("run-exists");
    expect(taken.output).toContain("--resume");
    const otherSeed = await outrigger("run", file, "--resume", "--out", out, "--seed", "4");
    expect(otherSeed.code).toBe(2);
    expect(otherSeed.output).toContain("seed-differs");
  });

  it("a port in use: which one, and what to do", async () => {
    const server = createServer();
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const { port } = server.address() as { port: number };
    const dir = join(root, "controller");
    for (const flag of ["--grpc-port", "--http-port"]) {
      const other = flag === "--grpc-port" ? "--http-port" : "--grpc-port";
      const args = ["controller", "--dir", dir, flag, String(port), other, "0"];
      const { code, output } = await outrigger(...args);
      expect(code, output).toBe(2);
      expect(output).toContain(`cannot listen on 127.0.0.1:${port}`);
      expect(output).toContain("port-unavailable");
    }
    await new Promise((done) => server.close(done));
  });
});

describe("a backend that cannot start says why", () => {
  it("no weights", async () => {
    const { folder, file, out } = await experiment();
    rmSync(join(folder, "policy", "model.safetensors"));
    const { code, output } = await outrigger("run", file, "--out", out);
    expect(code, output).not.toBe(0);
    expect(output).toContain("the backend process ended with exit code");
    expect(output).toContain("model.safetensors");
  });

  it("a tokenizer of another model", async () => {
    const { folder, file, out } = await experiment();
    const path = join(folder, "policy", "tokenizer.json");
    const json = JSON.parse(readFileSync(path, "utf8")) as {
      added_tokens: unknown[];
      model: { vocab: Record<string, number> };
    };
    json.model.vocab["extra"] = 400;
    writeFileSync(path, JSON.stringify(json));
    const { code, output } = await outrigger("run", file, "--out", out);
    expect(code, output).not.toBe(0);
    expect(output).toMatch(/tokenizer/);
    expect(output).toMatch(/259|400|401/);
  });
});

it("a broken verifier stops the run at the first evaluation; mended, --resume evaluates anew", async () => {
  const broken = 'console.error("no answers.json"); process.exit(1);';
  const { folder, file, out } = await experiment(
    {
      reward: { verifier: { retries: 0 } },
      schedule: { steps: 1, groupsPerStep: 1, groupSize: 2 },
      evaluation: { count: 2, after: false },
      failurePolicy: { "infra-error": { maxRequeues: 0 } },
      limits: { maxInfraErrorFraction: 1 },
    },
    { "verify.mjs": broken },
  );
  const first = await outrigger("run", file, "--out", out);
  expect(first.code, first.output).toBe(2);
  expect(first.output).toMatch(/warning: attempt eval-0-\d\.1 was not graded: .*no answers\.json/);
  expect(first.output).toContain("none of the 2 rollouts of the evaluation before training");
  expect(first.output).toContain("verifier-failed");
  const changed = await experiment({ algorithm: { learningRate: 0.02 } });
  const other = await outrigger("run", changed.file, "--out", out, "--resume");
  expect(other.code, other.output).toBe(2);
  expect(other.output).toContain("algorithm.learningRate: 0.01 in the run, 0.02 now");
  const mended = `
    import { createInterface } from "node:readline";
    for await (const line of createInterface({ input: process.stdin })) {
      console.log(JSON.stringify({ id: JSON.parse(line).id, reward: 1 }));
    }`;
  writeFileSync(join(folder, "verify.mjs"), mended);
  const second = await outrigger("run", file, "--out", out, "--resume");
  expect(second.code, second.output).toBe(0);
  expect(second.output).toContain("pass@1 1.000 (2/2)");
  const stores = await openRunStores(out);
  const evaluated = await stores.rollouts.list({ purpose: "eval-0" });
  const [step] = await stores.steps.steps<StepMetrics>();
  await stores.close();
  expect(evaluated).toHaveLength(2);
  const begunAtMs = 1 + (step?.startedAtMs ?? 0) - 1000 * (step?.metrics?.seconds.sampling ?? 1e9);
  const evaluatedAtMs = Math.max(...evaluated.map((rollout) => rollout.updatedAtMs));
  expect(begunAtMs, "a step begins after the evaluation before it").toBeGreaterThanOrEqual(
    evaluatedAtMs,
  );
});

/** What the harness does is what its task says. */
const harness = `
const call = () => fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
  method: "POST",
  headers: { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" },
  body: JSON.stringify({ model: "policy", max_tokens: 4, messages: [{ role: "user", content: "hi" }] }),
}).then((response) => response.json());
switch (process.env.QUESTION) {
  case "never": break;
  case "hang": await call(); setInterval(() => {}, 1000); await new Promise(() => {}); break;
  case "exit": await call(); process.exit(3); break;
  default: await call();
}
`;

const verifier = `
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { id, task } = JSON.parse(line);
  if (task.question === "crash") process.exit(1);
  const reward = task.question === "silent" ? null : task.question === "nonsense" ? "high" : 0.5;
  console.log(JSON.stringify({ id, reward }));
}
`;

describe("what goes wrong in an attempt is a typed outcome", () => {
  const questions = ["fine", "never", "hang", "exit", "crash", "silent", "nonsense"];
  let stores: RunStores;
  let ended: Ended;
  let out = "";

  beforeAll(async () => {
    const tasks = questions.map((question) =>
      JSON.stringify({ id: question, question, answer: "" }),
    );
    const made = await experiment(
      {
        harness: { timeoutMs: 25_000, killGraceMs: 200 },
        reward: { verifier: { retries: 1, timeoutMs: 20_000 } },
        schedule: { steps: 1, groupsPerStep: questions.length, groupSize: 1 },
        evaluation: { before: false, after: false },
        failurePolicy: { "infra-error": { maxRequeues: 1 } },
        limits: {
          maxNeverCalledFraction: 0.1,
          maxInfraErrorFraction: 1,
          maxMissingRewardFraction: 1,
        },
      },
      {
        "train.jsonl": tasks.join("\n"),
        "harness.mjs": harness,
        "verify.mjs": verifier,
      },
    );
    out = made.out;
    ended = await outrigger("run", made.file, "--out", out);
    stores = await openRunStores(out);
  });
  afterAll(() => stores.close());

  it.each([
    ["fine", "succeeded", "succeeded", 0.5, 1, undefined],
    ["never", "failed", "never-called", undefined, 1, "exit-code-0"],
    ["hang", "failed", "timed-out", 0, 1, undefined],
    ["exit", "failed", "agent-error", 0, 1, "exit-code-3"],
    ["crash", "failed", "infra-error", undefined, 2, "verifier-crashed"],
    ["silent", "succeeded", "succeeded", undefined, 1, undefined],
    ["nonsense", "failed", "infra-error", undefined, 2, "verifier-answer-invalid"],
  ] as const)("%s", async (question, state, reason, reward, attemptCount, detail) => {
    const all = await stores.rollouts.list({});
    const rollout = all.find((r) => r.taskId === question);
    expect(rollout, ended.output).toBeDefined();
    expect(rollout?.state).toBe(state);
    expect(rollout?.endReason).toBe(reason);
    expect(rollout?.reward).toBe(reward);
    const attempts = await stores.rollouts.attempts(rollout?.rolloutId ?? "");
    expect(attempts).toHaveLength(attemptCount);
    expect(attempts.at(-1)?.detail).toBe(detail);
  });

  it("the run stops loudly and says which limit, and leaves no process behind", async () => {
    expect(ended.code, ended.output).toBe(1);
    expect(ended.output).toContain("limits-exceeded");
    expect(ended.output).toContain("limits.maxNeverCalledFraction");
    const { runId } = JSON.parse(readFileSync(join(out, "run.json"), "utf8")) as { runId: string };
    expect(findByEnvironment({ OUTRIGGER_RUN_ID: runId })).toEqual([]);
    const result = JSON.parse(readFileSync(join(out, "result.json"), "utf8")) as {
      state: string;
      error: { reason: string };
    };
    expect(result).toMatchObject({ state: "failed", error: { reason: "limits-exceeded" } });
  });
});
