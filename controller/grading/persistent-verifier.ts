import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { signalGroup } from "../runners/process-identity.ts";
import { type Grade, type GradeRequest, parseGrade } from "./grade.ts";
import type { VerifierSpec } from "./verify-in-process.ts";

type Child = ChildProcessByStdio<Writable, Readable, Readable>;

interface Pending {
  readonly timer: NodeJS.Timeout;
  readonly settle: (grade: Grade) => void;
}

/**
 * One long-lived verifier process that grades many attempts: a JSON line `{"id", …request}` in, a
 * JSON line `{"id", "reward", "info"?}` out, in any order. When it crashes, overruns or breaks the
 * format, everything it was working on is answered as failed and the next request starts it anew.
 */
export class PersistentVerifier {
  readonly #spec: VerifierSpec & { readonly cwd: string };
  #child: Child | undefined;
  readonly #pending = new Map<string, Pending>();
  #lastId = 0;
  #stderr = "";

  constructor(spec: VerifierSpec & { readonly cwd: string }) {
    this.#spec = spec;
  }

  grade(request: GradeRequest, signal: AbortSignal): Promise<Grade> {
    const child = (this.#child ??= this.#start());
    const id = String(++this.#lastId);
    return new Promise((resolve) => {
      const onAbort = (): void => pending.settle(failed("verifier-crashed", "was cancelled"));
      const timer = setTimeout(() => {
        this.#fail(
          child,
          failed("verifier-timed-out", `took longer than ${this.#spec.timeoutMs} ms`),
        );
      }, this.#spec.timeoutMs);
      const pending: Pending = {
        timer,
        settle: (grade) => {
          clearTimeout(timer);
          signal.removeEventListener("abort", onAbort);
          this.#pending.delete(id);
          resolve(grade);
        },
      };
      this.#pending.set(id, pending);
      signal.addEventListener("abort", onAbort, { once: true });
      child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
    });
  }

  /** Lets it end by itself: its input is closed. */
  close(): Promise<void> {
    const child = this.#child;
    if (child === undefined || child.exitCode !== null) return Promise.resolve();
    const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
    const timer = setTimeout(() => this.destroy(), this.#spec.timeoutMs);
    child.stdin.end();
    return ended.finally(() => clearTimeout(timer));
  }

  destroy(): void {
    if (this.#child?.pid !== undefined) signalGroup(this.#child.pid, "SIGKILL");
  }

  #start(): Child {
    const [program, ...args] = this.#spec.command;
    const child: Child = spawn(program as string, args, {
      cwd: this.#spec.cwd,
      env: this.#spec.environment,
      detached: true,
      stdio: ["pipe", "pipe", "pipe"],
    });
    this.#stderr = "";
    child.stdin.on("error", () => undefined);
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-4096);
    });
    createInterface({ input: child.stdout }).on("line", (line) => this.#answer(child, line));
    child.once("error", (error) =>
      this.#fail(child, failed("verifier-crashed", `cannot be started: ${error.message}`)),
    );
    child.once("close", (exitCode, killedBy) => {
      const how = exitCode === null ? `was killed by ${killedBy}` : `exited with ${exitCode}`;
      const said = this.#stderr.trim();
      this.#fail(child, failed("verifier-crashed", said === "" ? how : `${how}: ${said}`));
    });
    return child;
  }

  #answer(child: Child, line: string): void {
    if (line.trim() === "") return;
    const id = idOf(line);
    const pending = id === undefined ? undefined : this.#pending.get(id);
    if (pending !== undefined) pending.settle(parseGrade(line));
    else if (id === undefined) {
      const message = `printed a line without an id: ${line.slice(0, 200)}`;
      this.#fail(child, failed("verifier-answer-invalid", message));
    }
  }

  #fail(child: Child, grade: Grade): void {
    if (child.pid !== undefined) signalGroup(child.pid, "SIGKILL");
    if (this.#child !== child) return;
    this.#child = undefined;
    for (const pending of Array.from(this.#pending.values())) pending.settle(grade);
  }
}

function failed(detail: (Grade & { kind: "failed" })["detail"], what: string): Grade {
  return { kind: "failed", detail, message: `the verifier ${what}` };
}

function idOf(line: string): string | undefined {
  try {
    const { id } = JSON.parse(line) as { id?: unknown };
    return typeof id === "string" ? id : undefined;
  } catch {
    return undefined;
  }
}
