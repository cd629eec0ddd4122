import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { writeSmallModel } from "../contract/trainer-backend-model.ts";

const environment = process.env["OUTRIGGER_TEST_VENV"];
const python = environment === undefined ? "" : join(environment, "bin", "python");
const isThere = existsSync(python);

interface Seen {
  readonly sdk: string;
  readonly models: string[];
  readonly is_lora: boolean;
  readonly losses: number[];
  readonly optim_metrics: string[];
  readonly rewards: number[];
  readonly max_gap: number;
  readonly path: string;
  readonly restored: boolean;
  readonly prompt_gap: number;
  readonly refusal: string;
}

let directory: string;
let server: ChildProcess;
let url: string;

beforeAll(async () => {
  if (process.env["CI"] === "true") expect(isThere, "OUTRIGGER_TEST_VENV").toBe(true);
  directory = await mkdtemp(join(tmpdir(), "tinker-client-"));
  await writeSmallModel(join(directory, "small"));
  const flags = {
    model: join(directory, "small"),
    state: join(directory, "saved"),
    port: "0",
    "log-level": "silent",
  };
  server = spawn(
    process.execPath,
    [
      "bin/outrigger.js",
      "backend",
      "tinker-server",
      "--exit-with-parent",
      ...Object.entries(flags).flatMap(([name, value]) => [`--${name}`, value]),
    ],
    { stdio: ["pipe", "pipe", "inherit"] },
  );
  for await (const line of createInterface({ input: server.stdout! })) {
    url = (JSON.parse(line) as { url: string }).url;
    break;
  }
});
afterAll(async () => {
  server.kill("SIGTERM");
  await once(server, "exit");
  await rm(directory, { recursive: true });
});

// Without CI: skipped unless OUTRIGGER_TEST_VENV names a venv with test/python/requirements.txt.
describe.skipIf(!isThere)("the official Tinker client on the Tinker server", () => {
  it("trains by supervision and by reinforcement, saves, restores and is told its mistakes", async () => {
    const { stdout } = await promisify(execFile)(python, [
      "test/python/tinker-training-loop.py",
      url,
      "small",
    ]);
    const seen = JSON.parse(stdout.trim().split("\n").at(-1)!) as Seen;
    expect(seen).toMatchObject({
      sdk: "0.19.0",
      models: ["small"],
      is_lora: false,
      optim_metrics: ["grad_norm"],
      restored: true,
      path: expect.stringMatching(/^tinker:\/\/model_\w+\/weights\/checkpoint$/) as string,
      refusal: expect.stringContaining("token 9999 is not in the vocabulary of 272") as string,
    });
    expect(seen.losses.at(-1)!).toBeLessThan(seen.losses[0]! / 5);
    const mean = (values: number[]): number => values.reduce((a, b) => a + b, 0) / values.length;
    expect(mean(seen.rewards.slice(-3))).toBeGreaterThan(mean(seen.rewards.slice(0, 3)) + 0.15);
    expect(seen.max_gap).toBeLessThan(1e-4);
    expect(seen.prompt_gap).toBeLessThan(1e-4);
  });
});

describe("outrigger backend tinker-server", () => {
  it.each<[string, string, unknown, number, RegExp]>([
    ["an unknown model", "forward_backward", lossBody("model_x"), 404, /no model model_x/],
    [
      "an unknown session",
      "create_model",
      { session_id: "s", base_model: "small" },
      404,
      /session/,
    ],
    [
      "an unknown loss",
      "forward",
      { model_id: "m", forward_input: { data: [], loss_fn: "dro" } },
      400,
      /cross_entropy/,
    ],
    [
      "weights that are not there",
      "weights_info",
      { tinker_path: "tinker://m/weights/x" },
      404,
      /no weights/,
    ],
    [
      "a path outside",
      "weights_info",
      { tinker_path: "tinker://../weights/x" },
      400,
      /is not tinker/,
    ],
    ["no prompt", "asample", sampleBody([]), 400, /no tokens/],
    ["an unknown token", "asample", sampleBody([9999]), 400, /vocabulary of 272/],
    ["too long a prompt", "asample", sampleBody([1], 600), 400, /512/],
    ["an unknown future", "retrieve_future", { request_id: "x" }, 404, /no future/],
  ])("refuses %s and says so", async (_what, path, body, status, message) => {
    let response = await fetch(`${url}/api/v1/${path}`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    let text = await response.text();
    if (path === "asample" && response.status === 200) {
      // Sampling fails in its future.
      const { request_id } = JSON.parse(text) as { request_id: string };
      response = await fetch(`${url}/api/v1/retrieve_future`, {
        method: "POST",
        body: JSON.stringify({ request_id }),
      });
      text = await response.text();
      expect(JSON.parse(text)).toMatchObject({ category: "user" });
    } else expect(response.status).toBe(status);
    expect(text).toMatch(message);
  });

  it("names the missing key of an address that others can reach", async () => {
    const run = promisify(execFile)(process.execPath, [
      "bin/outrigger.js",
      "backend",
      "tinker-server",
      "--host",
      "0.0.0.0",
      "--model",
      join(directory, "small"),
      "--state",
      join(directory, "saved"),
    ]);
    await expect(run).rejects.toMatchObject({
      stderr: expect.stringContaining("OUTRIGGER_TINKER_API_KEY") as string,
    });
  });
});

function lossBody(modelId: string): unknown {
  return { model_id: modelId, forward_backward_input: { data: [], loss_fn: "ppo" } };
}

function sampleBody(tokens: readonly number[], maxTokens = 2): unknown {
  return {
    base_model: "small",
    prompt: { chunks: [{ type: "encoded_text", tokens }] },
    sampling_params: { max_tokens: maxTokens },
  };
}
