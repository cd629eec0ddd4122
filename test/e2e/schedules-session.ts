import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { findByEnvironment } from "../../controller/runners/process-identity.ts";
import { parseScheduleLog, type ScheduleEvent } from "../../core/scheduling/schedule-event.ts";
import { writeTinyExperiment } from "./tiny-experiment.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");

export type Victim = "controller" | "sidecar" | "backend";

/**
 * Two turns with a pause of lognormal length before each, the same for a rollout every time: tools
 * that take their time, and stragglers.
 */
const sleepingHarness = `
import { createHash } from "node:crypto";
const url = process.env.OPENAI_BASE_URL + "/chat/completions";
const headers = { authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json" };
const medianMs = Number(process.env.MEDIAN_MS), sigma = Number(process.env.SIGMA), capMs = Number(process.env.CAP_MS);
function pauseMs(turn) {
  const digest = createHash("sha256").update(process.env.OUTRIGGER_ROLLOUT_ID + ":" + turn).digest();
  const [u, v] = [0, 4].map((at) => (digest.readUInt32LE(at) + 1) / 4294967297);
  return Math.min(capMs, medianMs * Math.exp(sigma * Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v)));
}
async function ask(messages) {
  for (let tries = 1; ; tries += 1) {
    try {
      const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ model: "policy", messages, max_tokens: 8 }) });
      if (!response.ok) throw new Error(response.status + " " + (await response.text()));
      return (await response.json()).choices[0].message.content ?? "";
    } catch (error) {
      if (tries === 3) throw error;
      await new Promise((go) => setTimeout(go, 50 * tries));
    }
  }
}
import { writeFileSync } from "node:fs";
const messages = [{ role: "user", content: process.env.QUESTION }];
let text = "";
for (let turn = 0; turn < 2; turn += 1) {
  await new Promise((go) => setTimeout(go, pauseMs(turn)));
  const content = await ask(messages);
  text += content;
  messages.push({ role: "assistant", content }, { role: "user", content: "more" });
}
writeFileSync("answer.txt", text);
`;

export interface ScheduleExperiment {
  readonly kind: "sync" | "collocated-async" | "async";
  readonly maxStalenessSteps: number;
  readonly groupsPerStep: number;
  readonly groupSize: number;
  readonly concurrency: number;
  readonly pauses: { readonly medianMs: number; readonly sigma: number; readonly capMs: number };
}

/** The smallest experiment whose rollouts differ in length, under one schedule. */
export function writeScheduleExperiment(
  directory: string,
  { kind, maxStalenessSteps, groupsPerStep, groupSize, concurrency, pauses }: ScheduleExperiment,
): Promise<string> {
  return writeTinyExperiment(
    directory,
    {
      name: `schedule-${kind}`,
      harness: {
        timeoutMs: 120_000,
        concurrency,
        environment: {
          MEDIAN_MS: String(pauses.medianMs),
          SIGMA: String(pauses.sigma),
          CAP_MS: String(pauses.capMs),
        },
      },
      schedule: { kind, maxStalenessSteps, groupsPerStep, groupSize },
      failurePolicy: { "infra-error": { maxRequeues: 50 } },
      // A call that comes before a restarted sidecar has checked its engine is not trained; in steps
      // as small as these one such call is above the usual limits.
      limits: { maxIncompleteFraction: 1, capture: { maxZeroCapture: 1 } },
      evaluation: { before: false, after: false },
    },
    { "harness.mjs": sleepingHarness },
  );
}

/** One `outrigger run` process after another over the same directory. */
export class ScheduleSession {
  readonly directory: string;
  readonly #experiment: string;
  readonly #outputs: string[] = [];
  #child: ChildProcess | undefined;
  #ended: Promise<number | string> = Promise.resolve(0);

  constructor(experiment: string, directory: string) {
    this.#experiment = experiment;
    this.directory = directory;
  }

  start(steps: number): void {
    const isResume = existsSync(join(this.directory, "run.json"));
    const flags = ["--out", this.directory, "--steps", String(steps)];
    const child = spawn(
      process.execPath,
      [executable, "run", this.#experiment, ...flags, ...(isResume ? ["--resume"] : [])],
      { stdio: ["ignore", "pipe", "pipe"] },
    );
    let output = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (chunk: Buffer) => {
        output += chunk.toString();
      });
    }
    this.#child = child;
    this.#ended = new Promise((done) => {
      child.once("close", (code, signal) => {
        this.#outputs.push(output);
        done(signal ?? code ?? 0);
      });
    });
  }

  get output(): string {
    return this.#outputs.join("\n-----\n");
  }

  /** Exit code, or the signal that ended it. */
  ended(): Promise<number | string> {
    return this.#ended;
  }

  /** The whole lines of the schedule's log so far. */
  events(): readonly ScheduleEvent[] {
    const file = join(this.directory, "schedule.jsonl");
    if (!existsSync(file)) return [];
    const text = readFileSync(file, "utf8");
    return parseScheduleLog(text.slice(0, text.lastIndexOf("\n") + 1));
  }

  /** Resolves when the log says so once more than now; the wait is the fault injector's. */
  async next(type: ScheduleEvent["type"], timeoutMs: number): Promise<void> {
    // Not by place: a session that begins puts the calls of the one before in between.
    const count = (): number => this.events().filter((event) => event.type === type).length;
    const before = count();
    const deadlineMs = Date.now() + timeoutMs;
    while (count() <= before) {
      if (this.#child?.exitCode !== null || Date.now() > deadlineMs) {
        this.#child?.kill("SIGKILL");
        await this.#ended;
        throw new Error(`no ${type} after ${before} of them:\n${this.#outputs.at(-1) ?? ""}`);
      }
      await new Promise((done) => setTimeout(done, 3));
    }
  }

  async kill(victim: Victim): Promise<void> {
    if (victim === "controller") {
      this.#child?.kill("SIGKILL");
      await this.#ended;
    } else kill(this.#pidOf(victim));
  }

  /** Ends everything of the run. */
  async destroy(): Promise<void> {
    await this.kill("controller");
    for (const victim of ["sidecar", "backend"] as const) kill(this.#pidOf(victim));
    const identity = readJson(join(this.directory, "run.json")) as { runId?: string } | undefined;
    if (identity?.runId === undefined) return;
    for (const pid of findByEnvironment({ OUTRIGGER_RUN_ID: identity.runId })) kill(pid);
  }

  #pidOf(victim: Exclude<Victim, "controller">): number | undefined {
    const children = readJson(join(this.directory, "children.json")) as
      | Record<string, { readonly pid: number }>
      | undefined;
    return children?.[victim]?.pid;
  }
}

function kill(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // Gone already.
  }
}

function readJson(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    return undefined;
  }
}
