import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { findByEnvironment } from "../../controller/runners/process-identity.ts";

const executable = resolve(import.meta.dirname, "../../bin/outrigger.js");

/** One `outrigger run` process after another over the same directory. */
export class RunSessions {
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

  get isAlive(): boolean {
    return this.#child?.exitCode === null && this.#child.signalCode === null;
  }

  /** Of all sessions that have ended. */
  get output(): string {
    return this.#outputs.join("\n-----\n");
  }

  /** Of the last session, once it has ended. */
  async lastOutput(): Promise<string> {
    await this.#ended;
    return this.#outputs.at(-1) ?? "";
  }

  /** Exit code, or the signal that ended it. */
  ended(): Promise<number | string> {
    return this.#ended;
  }

  async killController(): Promise<void> {
    this.#child?.kill("SIGKILL");
    await this.#ended;
  }

  pidOf(child: "sidecar" | "backend"): number | undefined {
    return this.#children()[child]?.pid;
  }

  /** Of harnesses and whatever else the run has started, its sidecar and backend left out. */
  harnessPids(): readonly number[] {
    const runId = this.#read<{ readonly runId: string }>("run.json")?.runId;
    if (runId === undefined) return [];
    const ours = new Set(Object.values(this.#children()).map(({ pid }) => pid));
    return findByEnvironment({ OUTRIGGER_RUN_ID: runId }).filter((pid) => !ours.has(pid));
  }

  /** Ends everything of the run. */
  async destroy(): Promise<void> {
    await this.killController();
    for (const pid of this.harnessPids()) killProcess(pid);
    for (const child of ["sidecar", "backend"] as const) killProcess(this.pidOf(child));
  }

  #children(): Record<string, { readonly pid: number }> {
    return this.#read("children.json") ?? {};
  }

  #read<T>(name: string): T | undefined {
    try {
      return JSON.parse(readFileSync(join(this.directory, name), "utf8")) as T;
    } catch {
      return undefined;
    }
  }
}

/** SIGKILL; false when there is no such process (any more). */
export function killProcess(pid: number | undefined): boolean {
  if (pid === undefined) return false;
  try {
    return process.kill(pid, "SIGKILL");
  } catch {
    return false;
  }
}
