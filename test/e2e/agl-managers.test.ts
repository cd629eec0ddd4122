import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  type EngineScript,
  type ScriptedEngine,
  type Step,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import {
  type AglRun,
  eventually,
  startAglRun,
  temporaryFolder,
  writeAglExperiment,
} from "./agl-support.ts";

const environment = process.env["OUTRIGGER_TEST_VENV"];
const python = join(environment ?? "", "bin/python");
const isThere = environment !== undefined && hasPackage(join(environment, "lib"));
const script = resolve(import.meta.dirname, "../python/agl-manager.py");

it("CI has Agent Lightning's package", () => {
  if (process.env["CI"] !== "true") return;
  expect(isThere, "OUTRIGGER_TEST_VENV has test/python/requirements-agl.txt").toBe(true);
});

interface View {
  readonly state: string;
  readonly plan: string;
  readonly reward: number | null;
  readonly error: string | null;
  readonly triplets: readonly {
    readonly prompt: number;
    readonly response: number;
    readonly log_probs: number;
    readonly version: number;
    readonly reward: number | null;
  }[];
  readonly raw: readonly string[];
  readonly raw_requests: readonly {
    readonly messages: number;
    readonly choices: number;
    readonly token_ids: readonly number[];
    readonly status: string;
    readonly delivered: boolean;
  }[];
  readonly triplet_events: readonly string[];
}

// Without CI: skipped unless OUTRIGGER_TEST_VENV names a venv with test/python/requirements*.txt.
// The package asks for Python 3.12; what is used of it runs on 3.11, unmodified.
describe.skipIf(!isThere)("Agent Lightning's own client and managers", () => {
  const folder = temporaryFolder();
  let engine: ScriptedEngine;
  let run: AglRun;
  let release: () => void = () => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });

  beforeAll(async () => {
    engine = await startScriptedEngine(heldWhere("wait: ", released));
    run = await startAglRun(writeAglExperiment(folder.path), join(folder.path, "run"));
  });
  afterAll(async () => {
    release();
    await run?.stop();
    await engine.close();
    folder.remove();
  });

  it("sync manager: creates, waits, reads raw and triplet, deletes", async () => {
    const told = await (await ask("sync")).ended;
    const { done, val, gone, registered, hooks } = told as {
      done: View[];
      val: View[];
      gone: boolean[];
      registered: object[];
      hooks: object;
    };
    expect(registered).toEqual([{ model: "policy", endpoint: `${engine.url}/v1`, version: 0 }]);
    expect(gone).toEqual(Array.from({ length: 13 }, () => true));
    expect(hooks).toEqual({
      succeeded: 11,
      failed: ["agent-error", "agent-error"],
    });
    const of = (plan: string): View[] => done.filter((view) => view.plan === plan);
    const tripletCounts = { turns: 2, choices: 2, parallel: 2, stream: 1, fail: 1, unreported: 1 };
    for (const [plan, count] of Object.entries(tripletCounts)) {
      expect(of(plan), plan).toHaveLength(2);
      for (const view of of(plan)) {
        expect(view.triplets, plan).toHaveLength(count);
        for (const { prompt, response, log_probs: logProbs, version } of view.triplets) {
          expect(prompt).toBeGreaterThan(0);
          expect(response).toBeGreaterThan(0);
          expect(logProbs).toBe(response);
          expect(version).toBe(0);
        }
      }
    }
    for (const view of of("turns")) {
      expect(view).toMatchObject({ state: "succeeded", reward: 0.5, error: null });
      // Records and events come by different ways, so in no order of one to the other.
      const ofHarness = view.raw.filter((type) => type !== "model_request");
      expect(ofHarness).toEqual(["note", "reward", "hook_note"]);
      expect(view.raw.filter((type) => type === "model_request")).toHaveLength(2);
      expect(view.triplet_events).toEqual(view.raw);
      expect(view.raw_requests.map(({ messages }) => messages)).toEqual([1, 3]);
      expect(view.triplets[1]?.prompt).toBeGreaterThan(view.triplets[0]?.prompt ?? 0);
    }
    for (const view of of("choices")) {
      expect(view.raw_requests).toMatchObject([{ choices: 2, status: "ok", delivered: true }]);
      expect(view.triplet_events.filter((type) => type === "model_request")).toHaveLength(2);
    }
    for (const view of of("fail")) {
      expect(view).toMatchObject({ state: "failed", reward: null, error: "agent-error" });
    }
    for (const view of of("unreported")) {
      expect(view).toMatchObject({ state: "succeeded", reward: null });
    }
    expect(val).toMatchObject([{ state: "succeeded", reward: 0.5 }]);
    // Theirs are the sampling parameters of each mode, whatever the agent asks for.
    const temperatures = new Set(
      engine.requests.flatMap(({ url, json }) =>
        url.endsWith("/chat/completions") && json["max_tokens"] === undefined
          ? [json["temperature"]]
          : [],
      ),
    );
    expect(temperatures).toEqual(new Set([1, 0.7]));
  });

  it("async manager: carries a group over; pause, drain and resume in mid-flight", async () => {
    const manager = await ask("async");
    await manager.said("PAUSED");
    const isBusy = (await run.ask("GET", "/proxy/state")).body as { inflight: number };
    expect(isBusy.inflight, "the held answers are in flight").toBeGreaterThan(0);
    release();
    await manager.said("DRAINED");
    // The agents of the carried group go on to their second turn, and wait at the gate.
    await eventually(async () => ((await run.heldCalls()) === 2 ? true : undefined));
    const before = engine.requests.length;
    const { body: state } = await run.ask("GET", "/proxy/state");
    expect(state).toEqual({
      paused: true,
      retry_after_seconds: 5,
      reason: "weight update",
      inflight: 0,
    });
    expect(engine.requests.length, "no call reaches the engine while paused").toBe(before);
    manager.go();
    const told = (await manager.ended) as Record<string, unknown>;
    const first = told["first"] as View[];
    const second = told["second"] as View[];
    expect(told).toMatchObject({ carried: 2, left: 0, gone: [true, true, true, true, true, true] });
    expect(told["paused"]).toMatchObject({ paused: true, reason: "weight update" });
    expect(told["drained"]).toMatchObject({ paused: true, inflight: 0 });
    expect(told["resumed"]).toMatchObject({ paused: false, reason: null });
    expect(first.map(({ plan }) => plan)).toEqual(["turns", "turns"]);
    expect(second.map(({ plan }) => plan).sort()).toEqual(["turns", "turns", "wait", "wait"]);
    for (const view of [...first, ...second]) {
      expect(view.state).toBe("succeeded");
      expect(view.triplets).toHaveLength(2);
    }
  });

  it("clients: every other route, bad keys and bad input, one base URL", async () => {
    const told = await (await ask("client")).ended;
    expect(told).toEqual({
      bad_key: 401,
      health: { status: "ok" },
      created: {
        ids: ["own-id", 32],
        same: true,
        metadata: { batch_idx: 3, sample_idx_in_batch: null, note: "kept" },
        input: ["not", "an", "object"],
        timeouts: [3600, 7],
      },
      terminal: [
        ["failed", "", false],
        ["succeeded", "d7", true],
      ],
      after: 0,
      attempts: true,
      only_rewards: ["reward"],
      forbidden: 409,
      unknown_key: 422,
      patched: ["job-7", 1],
      unusable: "agent-error: local.env_map.Q: the input has nothing at input.5",
      deleted: [204, 204],
      events_gone: 404,
      later: [],
      proxied: [200, "assistant", true, "data: [DONE]"],
      no_path: 404,
      no_mode: 404,
      no_rollout: 404,
      proxied_triplets: [true, true],
      deleted_running: 204,
      deleted_soon: true,
      no_model: 503,
      deleted_running_too: 204,
    });
  });

  interface Asked {
    /** Resolves when it has printed this line. */
    said(line: string): Promise<void>;
    go(): void;
    readonly ended: Promise<unknown>;
  }

  async function ask(scenario: string): Promise<Asked> {
    const child: ChildProcess = spawn(
      python,
      ["-u", script, scenario, run.url, run.key, `${engine.url}/v1`],
      { stdio: ["pipe", "pipe", "pipe"] },
    );
    let output = "";
    const collect = (chunk: Buffer): void => {
      output += chunk.toString();
    };
    child.stdout?.on("data", collect);
    child.stderr?.on("data", collect);
    const exited = new Promise<number | null>((done) => child.once("close", done));
    return {
      said: (line) =>
        eventually(async () => {
          if (child.exitCode !== null) throw new Error(output);
          return output.split("\n").includes(line) ? true : undefined;
        }).then(() => undefined),
      go: () => child.stdin?.write("\n"),
      ended: exited.then((code) => {
        if (code !== 0) throw new Error(`${scenario} ended with ${code}:\n${output}`);
        return JSON.parse(output.trimEnd().split("\n").at(-1) as string) as unknown;
      }),
    };
  }
});

function hasPackage(lib: string): boolean {
  if (!existsSync(lib)) return false;
  return readdirSync(lib).some((name) =>
    existsSync(join(lib, name, "site-packages", "agentlightning")),
  );
}

/** vLLM's answers, held back for prompts with `marker` until `released`. */
function heldWhere(marker: string, released: Promise<void>): EngineScript {
  const answers = vllmScript();
  return async function* held(request): AsyncIterable<Step> {
    if (request.body.includes(marker)) yield { until: released };
    yield* await answers(request);
  };
}
