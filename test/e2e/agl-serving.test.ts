import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import {
  type AglRun,
  eventually,
  startAglRun,
  temporaryFolder,
  writeAglExperiment,
} from "./agl-support.ts";

interface Rollout {
  readonly rollout_id: string;
  readonly status: {
    readonly state: string;
    readonly last_attempt_id: string | null;
    readonly error_message: string | null;
  };
}
interface Event {
  readonly event_type: string;
  readonly attempt_id: string;
  readonly data: Readonly<Record<string, unknown>>;
}

const folder = temporaryFolder();
let engine: ScriptedEngine;
let run: AglRun | undefined;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
});
afterEach(async () => {
  await run?.stop();
  run = undefined;
});
afterAll(async () => {
  await engine.close();
  folder.remove();
});

function create(serving: AglRun, rolloutId: string, plan: string, config: object = {}) {
  return serving.ask("POST", "/api/rollouts", [
    {
      rollout_id: rolloutId,
      input: { plan, question: "1+1" },
      config: { local: { env_map: { PLAN: "input.plan", QUESTION: "input.question" } }, ...config },
    },
  ]);
}

async function ended(serving: AglRun, rolloutId: string): Promise<Rollout> {
  return eventually(async () => {
    const { body } = await serving.ask("GET", `/api/rollouts/${rolloutId}`);
    const { rollout } = body as { rollout: Rollout };
    return ["succeeded", "failed"].includes(rollout.status.state) ? rollout : undefined;
  });
}

async function events(serving: AglRun, rolloutId: string, query = ""): Promise<Event[]> {
  return (await serving.ask("GET", `/api/rollouts/${rolloutId}/events${query}`)).body as Event[];
}

describe("a served experiment", () => {
  it("invariant 5: kill -9 in mid-flight and paused: nothing is lost, the gate stays shut", async () => {
    const file = writeAglExperiment(folder.path);
    const out = join(folder.path, "restart");
    run = await startAglRun(file, out);
    await run.ask("POST", "/api/models", [{ model: "policy", endpoint: `${engine.url}/v1` }]);
    await create(run, "before", "turns");
    await ended(run, "before");
    await run.ask("POST", "/proxy/pause", { retry_after_seconds: 9, reason: "update" });
    await create(run, "during", "turns");
    const { heldCalls } = run;
    await eventually(async () => ((await heldCalls()) === 1 ? true : undefined));
    const sent = engine.requests.length;
    await run.kill();

    run = await startAglRun(file, out, ["--resume"]);
    const state = (await run.ask("GET", "/proxy/state")).body;
    expect(state).toMatchObject({ paused: true, retry_after_seconds: 9, reason: "update" });
    // The agent of before is gone; a new attempt comes to the gate, which is shut.
    const { heldCalls: heldNow } = run;
    await eventually(async () => ((await heldNow()) === 1 ? true : undefined));
    const chats = engine.requests.slice(sent).filter(({ body }) => body.includes("turns: "));
    expect(chats, "no call of an agent reaches the engine while paused").toEqual([]);
    expect(await events(run, "before")).toHaveLength(4);
    await run.ask("POST", "/proxy/resume");
    const rollout = await ended(run, "during");
    expect(rollout.status).toMatchObject({ state: "succeeded", last_attempt_id: "during.2" });
    const triplets = await events(run, "during", "?format=triplet");
    expect(triplets.map(({ event_type: type }) => type)).toEqual([
      "model_request",
      "model_request",
      "note",
      "reward",
    ]);
    const page = (await run.ask("GET", "/api/rollouts/terminal")).body as { items: object[] };
    expect(page).toMatchObject({ next_after: 2, total_terminal: 2 });
    expect(page.items).toMatchObject([{ rollout_id: "before" }, { rollout_id: "during" }]);
    expect(await run.stop()).toBe(0);
  });

  it("invariant 7: the agent's key rewards nothing and manages nothing; the verifier's reward arrives", async () => {
    writeFileSync(join(folder.path, "verify.mjs"), "process.stdout.write('0.25\\n');\n");
    writeFileSync(
      join(folder.path, "probe.mjs"),
      `
const { AGL_OPENAI_BASE_URL, AGL_EVENT_URL, AGL_KEY } = process.env;
const headers = { authorization: "Bearer " + AGL_KEY, "content-type": "application/json" };
const send = async (method, url, body) =>
  (await fetch(url, { method, headers, ...(body && { body: JSON.stringify(body) }) })).status;
const api = new URL(AGL_EVENT_URL).origin;
const statuses = [
  await send("POST", AGL_OPENAI_BASE_URL + "/chat/completions", { messages: [{ role: "user", content: "hi" }], stream: true }),
  await send("POST", AGL_EVENT_URL, { event_type: "reward", data: { value: 1 } }),
  await send("POST", AGL_EVENT_URL.replace("probe.1", "probe.2"), { event_type: "note" }),
  await send("GET", api + "/api/rollouts?state_in=running"),
  await send("PATCH", api + "/api/rollouts/probe", { status: { state: "succeeded" } }),
  await send("POST", api + "/proxy/resume"),
  await send("DELETE", api + "/api/models"),
];
await send("POST", AGL_EVENT_URL, { event_type: "statuses", data: { statuses } });
`,
    );
    const file = writeAglExperiment(folder.path, {
      name: "agl-verified",
      harness: { command: ["node", "./probe.mjs"] },
      reward: { verifier: { command: ["node", "./verify.mjs"] } },
    });
    run = await startAglRun(file, join(folder.path, "verified"));
    await run.ask("POST", "/api/models", [{ model: "policy", endpoint: `${engine.url}/v1` }]);
    await create(run, "probe", "any");
    expect((await ended(run, "probe")).status.state).toBe("succeeded");
    const all = await events(run, "probe", "?format=triplet");
    const data = Object.fromEntries(all.map((event) => [event.event_type, event.data]));
    expect(data["statuses"]).toEqual({ statuses: [200, 403, 403, 403, 403, 403, 403] });
    expect(data["reward"]).toEqual({ value: 0.25, source: "verifier", reason: "succeeded" });
    expect(data["model_request"]).toMatchObject({ status: "ok", http_status: 200 });
  });

  it("time-outs, agents that never call, and rollouts that somebody else runs", async () => {
    run = await startAglRun(
      writeAglExperiment(folder.path, { name: "agl-other" }),
      join(folder.path, "other"),
    );
    const serving = run;
    await create(serving, "slow", "hang", { timeout_seconds: 1 });
    expect((await ended(serving, "slow")).status.error_message).toMatch(/^timed-out/);
    await create(serving, "idle", "idle");
    // No engine is registered: the agent of this plan calls none, and only posts its events.
    expect((await ended(serving, "idle")).status.error_message).toMatch(/^never-called/);
    // Every slot is taken by agents that hang: the next rollout stays queued for others to run.
    for (const id of ["h1", "h2", "h3", "h4"]) await create(serving, id, "hang");
    await create(serving, "foreign", "hang");
    const patch = (status: object) => serving.ask("PATCH", "/api/rollouts/foreign", { status });
    const started = await patch({ state: "running", last_attempt_id: "0" });
    expect(started.body).toMatchObject({
      status: { state: "running", last_attempt_id: "0", version: 2 },
    });
    await serving.ask("POST", "/api/rollouts/foreign/attempt/0/events", {
      event_type: "reward",
      data: { value: 1 },
    });
    expect((await patch({ state: "queuing" })).status).toBe(409);
    const finished = await patch({ state: "failed", error_message: "pod evicted" });
    expect(finished.body).toMatchObject({
      status: { state: "failed", error_message: "pod evicted", version: 3 },
    });
    expect((await patch({ state: "succeeded" })).status).toBe(409);
    expect(await events(serving, "foreign")).toMatchObject([{ attempt_id: "0" }]);
    // A trainer ends one that runs here: its agent is killed.
    const stopped = await serving.ask("PATCH", "/api/rollouts/h1", { status: { state: "failed" } });
    expect(stopped.body).toMatchObject({ status: { state: "failed" } });
    for (const id of ["h1", "h2", "h3", "h4"]) {
      expect((await serving.ask("DELETE", `/api/rollouts/${id}`)).status).toBe(204);
    }
    const left = (await serving.ask("GET", "/api/rollouts?state_in=running&state_in=queuing")).body;
    expect(left).toEqual([]);
  });
});
