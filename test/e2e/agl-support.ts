import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { stringify } from "yaml";

const outrigger = resolve(import.meta.dirname, "../../bin/outrigger.js");

/** What the agents of the tests do, by the `plan` of their task. */
const agent = `
const { AGL_OPENAI_BASE_URL, AGL_EVENT_URL, AGL_KEY, PLAN = "turns", QUESTION = "", FIRST } = process.env;
const headers = { authorization: "Bearer " + AGL_KEY, "content-type": "application/json" };
async function post(url, body) {
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(response.status + " " + (await response.text()));
  return response;
}
const say = (messages, more = {}) =>
  post(AGL_OPENAI_BASE_URL + "/chat/completions", { model: "mine", messages, ...more });
const reward = (value) => post(AGL_EVENT_URL, { event_type: "reward", data: { value, source: "agent", message: "done" } });
const first = [{ role: "user", content: PLAN + ": " + QUESTION }];
async function turns() {
  const answer = (await (await say(first)).json()).choices[0].message;
  await say([...first, { role: "assistant", content: answer.content }, { role: "user", content: "more" }]);
}
if (PLAN === "hang") setInterval(() => undefined, 1000);
else {
  if (PLAN === "turns" || PLAN === "wait") await turns();
  if (PLAN === "choices") await say(first, { n: 2 });
  if (PLAN === "parallel") await Promise.all([say(first), say(first)]);
  if (PLAN === "stream") {
    const text = await (await say(first, { stream: true })).text();
    if (!text.includes("data: [DONE]")) throw new Error("the stream did not end");
  }
  if (PLAN === "fail" || PLAN === "unreported") await say(first);
  if (PLAN === "fail") process.exit(3);
  await post(AGL_EVENT_URL, { event_type: "note", data: { first: FIRST ?? null } });
  if (PLAN !== "unreported") await reward(PLAN === "turns" ? 0.5 : 1);
}
`;

export interface AglRun {
  readonly directory: string;
  /** Of the controller; valid while it runs. */
  readonly url: string;
  readonly key: string;
  readonly output: () => string;
  /** Asks the API with the administrator's key. */
  ask(method: string, path: string, body?: unknown, key?: string): Promise<AglAnswer>;
  /** Calls that wait at the sidecar's gate. */
  readonly heldCalls: () => Promise<number>;
  kill(): Promise<void>;
  /** SIGTERM; gives the exit code. */
  stop(): Promise<number | null>;
}

export interface AglAnswer {
  readonly status: number;
  // Test code reads what it expects to be there.
  readonly body: never;
}

/** Writes an experiment of kind agl with the tests' agent; gives its file. */
export function writeAglExperiment(
  folder: string,
  over: Readonly<Record<string, unknown>> = {},
): string {
  writeFileSync(join(folder, "agent.mjs"), agent);
  const file = join(folder, "experiment.yaml");
  const experiment = {
    name: "agl-test",
    backend: { kind: "agl", port: 0 },
    harness: {
      command: ["node", "./agent.mjs"],
      concurrency: 4,
      killGraceMs: 500,
      mayReward: true,
    },
    schedule: { holdLimitMs: 60_000, drainLimitMs: 60_000 },
    ...over,
  };
  writeFileSync(file, stringify(experiment));
  return file;
}

export function temporaryFolder(): { readonly path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), "outrigger-agl-"));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

/** `outrigger run` of a real process, serving. */
export async function startAglRun(
  file: string,
  out: string,
  flags: readonly string[] = [],
): Promise<AglRun> {
  const child = spawn(process.execPath, [outrigger, "run", file, "--out", out, ...flags], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  // A test that gives up before it serves must not leave it behind.
  process.once("exit", () => child.kill("SIGKILL"));
  let output = "";
  const exited = new Promise<number | null>((resolve) => child.once("exit", resolve));
  const isServing = new Promise<void>((resolve, reject) => {
    const look = (chunk: Buffer): void => {
      output += chunk.toString();
      if (output.includes("serving;")) resolve();
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    void exited.then((code) => reject(new Error(`ended with ${code}:\n${output}`)));
  });
  await isServing;
  const { apiUrl: url, sidecarUrl } = JSON.parse(
    readFileSync(join(out, "controller.json"), "utf8"),
  ) as { apiUrl: string; sidecarUrl: string };
  const key = readFileSync(join(out, "admin-token"), "utf8");
  return {
    directory: out,
    url,
    key,
    output: () => output,
    ask: async (method, path, body, own = key) => {
      const response = await fetch(`${url}${path}`, {
        method,
        headers: { authorization: `Bearer ${own}`, "content-type": "application/json" },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      return { status: response.status, body: (text === "" ? null : JSON.parse(text)) as never };
    },
    heldCalls: async () => {
      const metrics = await (await fetch(`${sidecarUrl}/metrics`)).text();
      return Number(/^outrigger_sidecar_held(?:\{[^}]*\})? (\d+)$/m.exec(metrics)?.[1]);
    },
    kill: () => end(child, "SIGKILL", exited).then(() => undefined),
    stop: () => end(child, "SIGTERM", exited),
  };
}

function end(
  child: ChildProcess,
  signal: NodeJS.Signals,
  exited: Promise<number | null>,
): Promise<number | null> {
  child.kill(signal);
  return exited;
}

/** Looks again and again, a little apart: what is waited for happens in other processes. */
export async function eventually<T>(
  look: () => Promise<T | undefined>,
  timeoutMs = 60_000,
): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    if (performance.now() > deadline)
      throw new Error(`not within ${timeoutMs} ms: ${String(look)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
