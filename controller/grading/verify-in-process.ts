import { spawn } from "node:child_process";
import { endOutputAfterExit } from "../runners/end-output-after-exit.ts";
import { signalGroup } from "../runners/process-identity.ts";
import { type Grade, type GradeRequest, parseGrade } from "./grade.ts";

export interface VerifierSpec {
  readonly command: readonly string[];
  readonly timeoutMs: number;
  /** The whole environment, the verifier's own token included. */
  readonly environment: Readonly<Record<string, string>>;
}

const maxAnswerBytes = 1024 * 1024;

/**
 * Runs one verifier process for one attempt: the request as one JSON line on standard input, the
 * answer as the last line of standard output. Its group is killed when it has answered or overrun.
 */
export function verifyInProcess(
  spec: VerifierSpec,
  request: GradeRequest,
  signal: AbortSignal,
): Promise<Grade> {
  const [program, ...args] = spec.command;
  return new Promise((resolve) => {
    const child = spawn(program as string, args, {
      cwd: request.workspace,
      env: spec.environment,
      detached: true,
      stdio: ["pipe", "pipe", "pipe"],
    });
    endOutputAfterExit(child);
    let output = "";
    let errors = "";
    let stopped: "verifier-timed-out" | "cancelled" | undefined;
    const stop = (why: typeof stopped): void => {
      stopped ??= why;
      if (child.pid !== undefined) signalGroup(child.pid, "SIGKILL");
    };
    const timer = setTimeout(() => stop("verifier-timed-out"), spec.timeoutMs);
    const onAbort = (): void => stop("cancelled");
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    const settle = (grade: Grade): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
      if (child.pid !== undefined) signalGroup(child.pid, "SIGKILL");
      resolve(grade);
    };
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      output = (output + text).slice(-maxAnswerBytes);
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors = (errors + text).slice(-4096);
    });
    child.once("error", (error) => settle(crashed(`cannot be started: ${error.message}`)));
    child.once("close", (exitCode, killedBy) => {
      if (stopped === "verifier-timed-out") {
        const message = `the verifier took longer than ${spec.timeoutMs} ms`;
        settle({ kind: "failed", detail: "verifier-timed-out", message });
      } else if (exitCode !== 0) {
        const how = exitCode === null ? `was killed by ${killedBy}` : `exited with ${exitCode}`;
        settle(crashed(`${how}${errors === "" ? "" : `: ${errors.trim()}`}`));
      } else {
        settle(parseGrade(output.trimEnd().split("\n").at(-1) ?? ""));
      }
    });
    // A verifier need not read its input.
    child.stdin.on("error", () => undefined);
    child.stdin.end(`${JSON.stringify(request)}\n`);
  });
}

function crashed(how: string): Grade {
  return { kind: "failed", detail: "verifier-crashed", message: `the verifier ${how}` };
}
