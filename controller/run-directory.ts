import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import process from "node:process";
import { z } from "zod";
import { OutriggerError } from "../core/outrigger-error.ts";
import { identifyProcess } from "./runners/process-identity.ts";

const identitySchema = z.object({
  runId: z.string(),
  name: z.string(),
  experimentFile: z.string(),
  seed: z.number(),
  compute: z.string(),
  /** Asked for in place of the file's kind. */
  backend: z.string().optional(),
  createdAtMs: z.number(),
});

/** What a run is for ever; kept in `run.json`. */
export type RunIdentity = z.infer<typeof identitySchema>;

export interface RunDirectory {
  readonly path: string;
  readonly identity: RunIdentity;
  readonly isResumed: boolean;
  /** Forgets the lock. */
  release(): void;
}

export interface RunDirectoryRequest {
  readonly name: string;
  /** Given by the user; absent: below `runsRoot`. */
  readonly out: string | undefined;
  readonly runsRoot: string;
  readonly isResume: boolean;
  /** Makes the identity of a new run. */
  readonly newIdentity: () => RunIdentity;
}

/**
 * Finds or makes the directory of a run and locks it, so that two controllers never work on one.
 *
 * @throws OutriggerError `run-exists`, `run-missing`, `run-in-use`, `run-unreadable`,
 * `run-directory-unusable` (origin user)
 */
export function openRunDirectory(request: RunDirectoryRequest): RunDirectory {
  const path = request.isResume ? resumedPath(request) : newPath(request);
  const file = join(path, "run.json");
  let identity: RunIdentity;
  if (request.isResume) identity = readIdentity(file);
  else {
    identity = request.newIdentity();
    makeDirectory(path);
    writeAtomically(file, `${JSON.stringify(identity, null, 2)}\n`);
  }
  return { path, identity, isResumed: request.isResume, release: lock(path) };
}

function makeDirectory(path: string): void {
  try {
    mkdirSync(path, { recursive: true });
    accessSync(path, constants.W_OK);
  } catch (cause) {
    const isFile = existsSync(path) && !statSync(path).isDirectory();
    const problem = isFile ? "it is a file" : (cause as Error).message;
    throw new OutriggerError(
      "run-directory-unusable",
      `${path} cannot be the directory of a run: ${problem}`,
      {
        origin: "user",
        hint: "Name a new directory with --out, in a place you may write to.",
        cause,
      },
    );
  }
}

function newPath({ out, runsRoot, name }: RunDirectoryRequest): string {
  if (out !== undefined) {
    const path = resolve(out);
    if (!existsSync(join(path, "run.json"))) return path;
    throw new OutriggerError("run-exists", `${path} already holds a run`, {
      origin: "user",
      hint: "Go on with it by --resume, or choose another --out directory.",
    });
  }
  const last = Math.max(0, ...runNumbers(runsRoot, name));
  return join(resolve(runsRoot), `${name}-${last + 1}`);
}

function resumedPath({ out, runsRoot, name }: RunDirectoryRequest): string {
  if (out !== undefined) return resolve(out);
  const last = Math.max(0, ...runNumbers(runsRoot, name));
  if (last > 0) return join(resolve(runsRoot), `${name}-${last}`);
  throw new OutriggerError("run-missing", `there is no run of ${name} in ${resolve(runsRoot)}`, {
    origin: "user",
    hint: "Start one without --resume, or name its directory with --out.",
  });
}

function runNumbers(runsRoot: string, name: string): number[] {
  if (!existsSync(runsRoot)) return [];
  return readdirSync(runsRoot).flatMap((entry) => {
    const number = entry.startsWith(`${name}-`) ? entry.slice(name.length + 1) : "";
    return /^\d+$/.test(number) ? [Number(number)] : [];
  });
}

function readIdentity(file: string): RunIdentity {
  if (!existsSync(file)) {
    const path = dirname(file);
    const problem = !existsSync(path)
      ? "does not exist"
      : statSync(path).isDirectory()
        ? "holds no run (there is no run.json)"
        : "is a file, not the directory of a run";
    throw new OutriggerError("run-missing", `${path} ${problem}`, {
      origin: "user",
      hint: "--resume needs the directory of a run that was started before.",
    });
  }
  try {
    return identitySchema.parse(JSON.parse(readFileSync(file, "utf8")));
  } catch (cause) {
    throw new OutriggerError("run-unreadable", `${file} does not describe a run`, {
      origin: "user",
      hint: "--resume needs the directory of a run that was started before.",
      cause,
    });
  }
}

function lock(path: string): () => void {
  const file = join(path, "controller.lock");
  const holder = readLock(file);
  if (holder !== undefined && identifyProcess(holder.pid)?.startTime === holder.startTime) {
    throw new OutriggerError("run-in-use", `process ${holder.pid} is working on ${path}`, {
      origin: "user",
      hint: "Wait for it or stop it first.",
    });
  }
  writeAtomically(file, JSON.stringify(identifyProcess(process.pid)));
  return () => rmSync(file, { force: true });
}

function readLock(file: string): { readonly pid: number; readonly startTime: string } | undefined {
  try {
    return z
      .object({ pid: z.number(), startTime: z.string() })
      .parse(JSON.parse(readFileSync(file, "utf8")));
  } catch {
    return undefined;
  }
}

/** All or nothing, also when the process is killed in between. */
export function writeAtomically(file: string, text: string, mode = 0o644): void {
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, text, { mode });
  renameSync(temporary, file);
}
