import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream } from "node:fs";
import type { Readable } from "node:stream";
import { finished } from "node:stream/promises";
import { endOutputAfterExit } from "./end-output-after-exit.ts";
import {
  findByEnvironment,
  identifyProcess,
  type ProcessIdentity,
  signalGroup,
  signalOne,
} from "./process-identity.ts";

const killRounds = 3;

export interface ProcessSpec {
  readonly command: readonly string[];
  readonly cwd: string;
  /** The whole environment; nothing is inherited. */
  readonly environment: Readonly<Record<string, string>>;
  /** Names in `environment` whose values together only this program and what it starts have. */
  readonly marks?: readonly string[];
  /** Where standard output and standard error go, together. */
  readonly outputFile: string;
  readonly maxOutputBytes: number;
  readonly timeoutMs: number;
  /** From SIGTERM to SIGKILL. */
  readonly killGraceMs: number;
}

/** How a process ended; exactly one of these. */
export type ProcessEnd =
  | { readonly kind: "exited"; readonly exitCode: number }
  | { readonly kind: "killed"; readonly signal: string }
  | { readonly kind: "timed-out" }
  | { readonly kind: "cancelled" }
  | { readonly kind: "not-started"; readonly message: string };

/**
 * Runs one program as the leader of its own process group, so that what it started ends with it; on
 * Linux also what left the group but still carries the marks. Output beyond `maxOutputBytes` is
 * read and thrown away, with a line that says so; output that something else still holds open is
 * waited for a second, no longer.
 *
 * @param signal aborting it ends the group: SIGTERM, then SIGKILL
 */
export async function runProcess(
  spec: ProcessSpec,
  signal: AbortSignal,
  onStarted: (identity: ProcessIdentity) => void,
): Promise<ProcessEnd> {
  if (signal.aborted) return { kind: "cancelled" };
  const [program, ...args] = spec.command;
  let child: ChildProcess;
  try {
    child = spawn(program as string, args, {
      cwd: spec.cwd,
      env: spec.environment,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
  } catch (error) {
    return { kind: "not-started", message: (error as Error).message };
  }
  const failure = new Promise<ProcessEnd>((resolve) => {
    child.once("error", (error) => resolve({ kind: "not-started", message: error.message }));
  });
  if (child.pid === undefined) return failure;
  endOutputAfterExit(child);
  onStarted(identifyProcess(child.pid) ?? { pid: child.pid, startTime: "" });
  const output = writeBounded([child.stdout, child.stderr], spec.outputFile, spec.maxOutputBytes);
  const end = await Promise.race([failure, superviseEnd(child, child.pid, spec, signal)]);
  // Whatever the leader left behind goes too.
  signalGroup(child.pid, "SIGKILL");
  killMarked(spec);
  await output;
  return end;
}

/** Looked for again while something is found: it may have been starting another one. */
function killMarked({ environment, marks = [] }: ProcessSpec): void {
  if (marks.length === 0) return;
  const wanted = Object.fromEntries(marks.map((name) => [name, environment[name] ?? ""]));
  for (let round = 0; round < killRounds; round += 1) {
    const found = findByEnvironment(wanted);
    for (const pid of found) signalOne(pid, "SIGKILL");
    if (found.length === 0) return;
  }
}

function superviseEnd(
  child: ChildProcess,
  groupId: number,
  spec: ProcessSpec,
  signal: AbortSignal,
): Promise<ProcessEnd> {
  return new Promise((resolve) => {
    let ended: ProcessEnd | undefined;
    let killTimer: NodeJS.Timeout | undefined;
    const stop = (end: ProcessEnd): void => {
      if (ended !== undefined) return;
      ended = end;
      signalGroup(groupId, "SIGTERM");
      killTimer = setTimeout(() => signalGroup(groupId, "SIGKILL"), spec.killGraceMs);
    };
    const onAbort = (): void => stop({ kind: "cancelled" });
    const timeout = setTimeout(() => stop({ kind: "timed-out" }), spec.timeoutMs);
    signal.addEventListener("abort", onAbort, { once: true });
    child.once("exit", (exitCode, killedBy) => {
      clearTimeout(timeout);
      clearTimeout(killTimer);
      signal.removeEventListener("abort", onAbort);
      resolve(
        ended ??
          (exitCode === null
            ? { kind: "killed", signal: killedBy ?? "unknown" }
            : { kind: "exited", exitCode }),
      );
    });
  });
}

/** Both streams into one file; resolves when the streams have ended and the file is closed. */
async function writeBounded(
  streams: readonly (Readable | null)[],
  path: string,
  maxBytes: number,
): Promise<void> {
  const file = createWriteStream(path);
  let failed = false;
  file.on("error", () => {
    // A full disk must not fail the attempt: what is lost is only its log.
    failed = true;
  });
  let written = 0;
  const ends = streams.map((stream) => {
    if (stream === null) return Promise.resolve();
    stream.on("data", (chunk: Buffer) => {
      if (failed || written > maxBytes) return;
      const room = maxBytes - written;
      written += chunk.length;
      file.write(chunk.length > room ? chunk.subarray(0, room) : chunk);
      if (written > maxBytes) file.write(`\n[output cut after ${maxBytes} bytes]\n`);
    });
    return finished(stream).catch(() => undefined);
  });
  await Promise.all(ends);
  file.end();
  await finished(file).catch(() => undefined);
}
