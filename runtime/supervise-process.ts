import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import process from "node:process";
import { type ErrorOrigin, OutriggerError } from "../core/outrigger-error.ts";
import type { Logger } from "./log.ts";
import { sleep } from "./sleep.ts";

export interface SupervisedSpec {
  readonly name: string;
  /** Whose fault it is when the process does not come up. */
  readonly origin: ErrorOrigin;
  readonly command: readonly string[];
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** Gets standard output and standard error; appended to over restarts. */
  readonly logFile: string;
  /** Asked every `pollMs` after a start until it says true; a rejection counts as not yet. */
  isReady(signal: AbortSignal): Promise<boolean>;
  readonly readyTimeoutMs: number;
  /** How long SIGTERM may take before SIGKILL follows. */
  readonly graceMs: number;
  readonly log: Logger;
  readonly now: () => number;
  /** After each start, the first one included. */
  onStarted?(pid: number): void;
  /** After an unexpected end, before the restart. */
  readonly onCrash?: (how: string) => void;
  /** After a restart has become ready. */
  readonly onRestarted?: () => void;
  /** It fails again and again without becoming ready; nothing more is tried. */
  readonly onGivenUp: (error: OutriggerError) => void;
}

const pollMs = 25;
const firstBackoffMs = 100;
const maxBackoffMs = 10_000;
const maxFailedStarts = 5;
const tailBytes = 4096;

/**
 * A child process that is started again when it dies. Its standard input is a pipe that stays open
 * for as long as this process lives, so that the child can tell when it is alone.
 * Waits for: the child's end; then for a backoff (100 ms, doubling to 10 s, back to 100 ms once the
 * child was ready). A start that fails five times in a row is given up.
 */
export class SupervisedProcess {
  readonly #spec: SupervisedSpec;
  readonly #closing = new AbortController();
  readonly #outages: { fromMs: number; toMs: number | undefined }[] = [];
  #child: ChildProcess | undefined;
  #loop: Promise<void> = Promise.resolve();
  #readyWaiters: (() => void)[] = [];
  #isReady = false;

  constructor(spec: SupervisedSpec) {
    this.#spec = spec;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /** Whether it was dead, or not ready again, at any time since then (ms since the epoch). */
  wasDownSince(ms: number): boolean {
    return this.#outages.some(({ toMs }) => toMs === undefined || toMs >= ms);
  }

  get isReady(): boolean {
    return this.#isReady;
  }

  /**
   * Starts it and waits until it is ready.
   *
   * @throws OutriggerError `child-not-started` with the end of its log when the first start fails
   */
  async start(): Promise<void> {
    for (let failedStarts = 0; ; failedStarts += 1) {
      const child = this.#spawn();
      const ended = endOf(child);
      const outcome = await this.#waitUntilReady(ended);
      if (outcome === "ready") {
        this.#markReady();
        this.#loop = this.#supervise(ended);
        return;
      }
      child.kill("SIGKILL");
      // Killed from outside: that says nothing about how it would have gone.
      const wasKilled = outcome.startsWith("ended by ");
      if (wasKilled && failedStarts < maxFailedStarts && !this.#closing.signal.aborted) continue;
      this.#closing.abort();
      throw this.#startError(outcome);
    }
  }

  /** Resolves at once when it is ready, else after the restart. */
  whenReady(): Promise<void> {
    if (this.#isReady || this.#closing.signal.aborted) return Promise.resolve();
    return new Promise((resolve) => this.#readyWaiters.push(resolve));
  }

  async close(): Promise<void> {
    this.#closing.abort();
    const child = this.#child;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) {
      const ended = endOf(child);
      child.stdin?.end();
      child.kill("SIGTERM");
      const timer = setTimeout(() => child.kill("SIGKILL"), this.#spec.graceMs);
      await ended;
      clearTimeout(timer);
    }
    await this.#loop;
    this.#release();
  }

  #spawn(): ChildProcess {
    const { command, environment, logFile, log, name } = this.#spec;
    const [program, ...args] = command;
    const output = openSync(logFile, "a");
    const child = spawn(program as string, args, {
      env: { ...environment },
      stdio: ["pipe", output, output],
      // Its own process group: Ctrl-C on a terminal is for this process to pass on.
      detached: true,
    });
    closeSync(output);
    child.stdin?.on("error", () => undefined);
    log.debug({ child: name, childPid: child.pid }, "started");
    this.#child = child;
    if (child.pid !== undefined) this.#spec.onStarted?.(child.pid);
    return child;
  }

  async #supervise(firstEnd: Promise<string>): Promise<void> {
    const { log, name, onCrash, onRestarted, onGivenUp, now } = this.#spec;
    const { signal } = this.#closing;
    let ended = firstEnd;
    let backoffMs = firstBackoffMs;
    let failedStarts = 0;
    for (;;) {
      const how = await ended;
      if (signal.aborted) return;
      this.#isReady = false;
      this.#outages.push({ fromMs: now(), toMs: undefined });
      log.warn({ child: name, how }, "a process died and is started again");
      onCrash?.(how);
      await sleep(backoffMs, signal);
      if (signal.aborted) return;
      ended = endOf(this.#spawn());
      const outcome = await this.#waitUntilReady(ended);
      if (signal.aborted) continue;
      if (outcome === "ready") {
        backoffMs = firstBackoffMs;
        failedStarts = 0;
        this.#markReady();
        onRestarted?.();
        continue;
      }
      failedStarts += 1;
      backoffMs = Math.min(maxBackoffMs, backoffMs * 2);
      if (failedStarts >= maxFailedStarts) {
        this.#closing.abort();
        this.#child?.kill("SIGKILL");
        onGivenUp(this.#startError(outcome));
        this.#release();
        return;
      }
      this.#child?.kill("SIGKILL");
    }
  }

  async #waitUntilReady(ended: Promise<string>): Promise<"ready" | "too-slow" | `ended ${string}`> {
    const deadline = Date.now() + this.#spec.readyTimeoutMs;
    const { signal } = this.#closing;
    let end: string | undefined;
    void ended.then((how) => {
      end = how;
    });
    while (!signal.aborted && Date.now() < deadline) {
      if (end !== undefined) return `ended ${end}`;
      const isReady = await this.#spec.isReady(signal).catch(() => false);
      if (isReady && end === undefined) return "ready";
      await sleep(pollMs, signal);
    }
    return end === undefined ? "too-slow" : `ended ${end}`;
  }

  #startError(outcome: string): OutriggerError {
    const { name, logFile, origin, readyTimeoutMs } = this.#spec;
    const how = outcome === "too-slow" ? `was not ready after ${readyTimeoutMs} ms` : outcome;
    const tail = tailOf(logFile);
    return new OutriggerError(
      "child-not-started",
      `the ${name} process ${how}${tail === "" ? "" : `:\n${tail}`}`,
      { origin, hint: `Its whole output is in ${logFile}.` },
    );
  }

  #markReady(): void {
    this.#isReady = true;
    for (const outage of this.#outages) outage.toMs ??= this.#spec.now();
    this.#release();
  }

  #release(): void {
    for (const resolve of this.#readyWaiters.splice(0)) resolve();
  }
}

function endOf(child: ChildProcess): Promise<string> {
  if (child.exitCode !== null) return Promise.resolve(`with exit code ${child.exitCode}`);
  return new Promise((resolve) => {
    child.once("error", (error) => resolve(`because it cannot be started: ${error.message}`));
    child.once("exit", (exitCode, signal) =>
      resolve(signal === null ? `with exit code ${exitCode}` : `by ${signal}`),
    );
  });
}

function tailOf(path: string): string {
  try {
    const lines = readFileSync(path, "utf8").slice(-tailBytes).trimEnd().split("\n");
    return lines
      .slice(-12)
      .map((line) => `  | ${line}`)
      .join("\n");
  } catch {
    return "";
  }
}

/** The environment that every child of ours gets: our own, without what is meant for harnesses. */
export function childEnvironment(
  extra: Readonly<Record<string, string>>,
): Readonly<Record<string, string | undefined>> {
  return { ...process.env, ...extra };
}
