import { type ChildProcessByStdio, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { endOutputAfterExit } from "../runners/end-output-after-exit.ts";
import { signalGroup } from "../runners/process-identity.ts";
import { type Grade, type GradeRequest, parseGrade } from "./grade.ts";
import type { VerifierSpec } from "./verify-in-process.ts";

type Child = ChildProcessByStdio<Writable, Readable, Readable>;

interface Current {
  readonly id: string;
  readonly settle: (grade: Grade) => void;
}

/**
 * One long-lived verifier process that grades many attempts: a JSON line `{"id", …request}` in, a
 * JSON line `{"id", "reward", "info"?}` out. One request at a time, so that an attempt which makes
 * the verifier crash or hang costs no other attempt its grade; the next request starts it anew.
 */
export class PersistentVerifier {
  readonly #spec: VerifierSpec & { readonly cwd: string };
  #child: Child | undefined;
  #current: Current | undefined;
  #turn: Promise<unknown> = Promise.resolve();
  #lastId = 0;

  constructor(spec: VerifierSpec & { readonly cwd: string }) {
    this.#spec = spec;
  }

  grade(request: GradeRequest, signal: AbortSignal): Promise<Grade> {
    const grade = this.#turn.then(() => this.#gradeNow(request, signal));
    this.#turn = grade;
    return grade;
  }

  /** Lets it end by itself: its input is closed. */
  async close(): Promise<void> {
    await this.#turn;
    const child = this.#child;
    if (child === undefined) return;
    const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
    const timer = setTimeout(() => this.destroy(), this.#spec.timeoutMs);
    child.stdin.end();
    await ended;
    clearTimeout(timer);
  }

  destroy(): void {
    if (this.#child?.pid !== undefined) signalGroup(this.#child.pid, "SIGKILL");
  }

  #gradeNow(request: GradeRequest, signal: AbortSignal): Promise<Grade> {
    if (signal.aborted) return Promise.resolve(failed("verifier-crashed", "was cancelled"));
    const child = (this.#child ??= this.#start());
    const id = String(++this.#lastId);
    return new Promise((resolve) => {
      const { timeoutMs } = this.#spec;
      const stop = (grade: Grade): void => this.#end(child, grade);
      const onAbort = (): void => stop(failed("verifier-crashed", "was cancelled"));
      const timer = setTimeout(
        () => stop(failed("verifier-timed-out", `took longer than ${timeoutMs} ms`)),
        timeoutMs,
      );
      this.#current = {
        id,
        settle: (grade) => {
          clearTimeout(timer);
          signal.removeEventListener("abort", onAbort);
          this.#current = undefined;
          resolve(grade);
        },
      };
      signal.addEventListener("abort", onAbort, { once: true });
      child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
    });
  }

  #start(): Child {
    const [program, ...args] = this.#spec.command;
    const child: Child = spawn(program as string, args, {
      cwd: this.#spec.cwd,
      env: this.#spec.environment,
      detached: true,
      stdio: ["pipe", "pipe", "pipe"],
    });
    endOutputAfterExit(child);
    let errors = "";
    child.stdin.on("error", () => undefined);
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors = (errors + text).slice(-4096);
    });
    createInterface({ input: child.stdout }).on("line", (line) => this.#answer(child, line));
    child.once("error", (error) =>
      this.#end(child, failed("verifier-crashed", `cannot be started: ${error.message}`)),
    );
    child.once("close", (exitCode, killedBy) => {
      const how = exitCode === null ? `was killed by ${killedBy}` : `exited with ${exitCode}`;
      const said = errors.trim();
      this.#end(child, failed("verifier-crashed", said === "" ? how : `${how}: ${said}`));
    });
    return child;
  }

  #answer(child: Child, line: string): void {
    if (line.trim() === "" || this.#child !== child || this.#current === undefined) return;
    if (idOf(line) === this.#current.id) this.#current.settle(parseGrade(line));
    else {
      const message = `printed a line that answers nothing: ${line.slice(0, 200)}`;
      this.#end(child, failed("verifier-answer-invalid", message));
    }
  }

  /** The process is of no more use; what it was working on gets this grade. */
  #end(child: Child, grade: Grade): void {
    if (child.pid !== undefined) signalGroup(child.pid, "SIGKILL");
    if (this.#child !== child) return;
    this.#child = undefined;
    this.#current?.settle(grade);
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
