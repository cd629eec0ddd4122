import { randomBytes } from "node:crypto";
import {
  copyFile,
  link,
  mkdir,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  symlink,
} from "node:fs/promises";
import { basename, join } from "node:path";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import { allWritten, syncDirectory, writeDurably } from "../../../runtime/durable-files.ts";
import type { OptimizerState } from "../compute/compute.ts";
import type { LoadedModel } from "../model/load-model.ts";
import type { NamedWeights } from "../model/named-weights.ts";
import { readModelWeights } from "../model/read-model-weights.ts";
import { saveModel } from "../model/save-model.ts";
import { readOptimizerFile, writeOptimizerFile } from "./optimizer-file.ts";
import { parseStateRecord, type StateRecord } from "./state-record.ts";

export interface TrainingState {
  readonly record: StateRecord;
  readonly weights: NamedWeights;
  readonly optimizer: OptimizerState;
}

/**
 * The trainer's durable state:
 * ```
 * current -> versions/v12-5f3a…        the exact state; swapped by one rename
 * versions/v12-5f3a…/                  a Hugging Face model directory, with
 *   optimizer.safetensors  outrigger.json
 * versions/v11-90b1…/                  the one before
 * checkpoints/NAME -> .NAME-77c0…      named by the caller, kept until named again
 * ```
 * A kill at any moment leaves `current` on a whole state. Files are never changed once written, so
 * a named checkpoint shares them by hard link.
 */
export interface StateStore {
  readonly directory: string;
  /** The last committed state; undefined before the first commit. */
  load(): Promise<TrainingState | undefined>;
  /** Writes a state and makes it current; keeps it and the one before. */
  commit(state: TrainingState): Promise<void>;
  /** Names the current state; gives its directory. */
  saveNamed(name: string): Promise<string>;
  /** The named state; reading it does not make it current. */
  loadNamed(name: string): Promise<TrainingState>;
}

const suffix = (): string => randomBytes(6).toString("hex");
const keptVersions = 2;

export async function openStateStore(directory: string, model: LoadedModel): Promise<StateStore> {
  const versions = join(directory, "versions");
  const checkpoints = join(directory, "checkpoints");
  const current = join(directory, "current");
  await mkdir(versions, { recursive: true });
  await mkdir(checkpoints, { recursive: true });
  return {
    directory,
    load: async () => {
      const target = await linkTarget(current);
      return target === undefined ? undefined : readState(join(directory, target), model);
    },
    commit: async (state) => {
      const name = `v${state.record.version}-${suffix()}`;
      const before = await linkTarget(current);
      try {
        await writeState(join(versions, name), state, model);
        await pointTo(current, join("versions", name));
      } catch (cause) {
        await rm(join(versions, name), { recursive: true, force: true });
        throw new OutriggerError(
          "checkpoint-write-failed",
          `cannot write the trainer's state to ${directory}: ${(cause as Error).message}`,
          { origin: "backend", hint: "Free disk space; the update was not applied.", cause },
        );
      }
      await prune(versions, name, before === undefined ? undefined : basename(before));
    },
    saveNamed: async (name) => {
      checkName(name);
      const target = await linkTarget(current);
      if (target === undefined) throw missing(current);
      const hidden = `.${name}-${suffix()}`;
      await shareFiles(join(directory, target), join(checkpoints, hidden));
      const before = await linkTarget(join(checkpoints, name));
      await pointTo(join(checkpoints, name), hidden);
      if (before !== undefined) await rm(join(checkpoints, before), { recursive: true });
      return join(checkpoints, name);
    },
    loadNamed: async (name) => {
      checkName(name);
      const target = await linkTarget(join(checkpoints, name));
      if (target === undefined) throw missing(join(checkpoints, name));
      return readState(join(checkpoints, target), model);
    },
  };
}

const missing = (path: string): OutriggerError =>
  new OutriggerError("checkpoint-missing", `there is no checkpoint at ${path}`, {
    origin: "backend",
    hint: "Make one with `checkpoint` first, or name another.",
  });

function checkName(name: string): void {
  if (/^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$/.test(name)) return;
  throw new OutriggerError(
    "checkpoint-name-invalid",
    `checkpoint name ${JSON.stringify(name)} is not a plain file name`,
    { origin: "user", hint: "Use letters, digits, '.', '_' and '-'." },
  );
}

async function linkTarget(path: string): Promise<string | undefined> {
  try {
    return await readlink(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** A symbolic link replaced by rename points to the old or to the new target, never to nothing. */
async function pointTo(path: string, target: string): Promise<void> {
  const temporary = `${path}.${suffix()}.tmp`;
  await symlink(target, temporary);
  await rename(temporary, path);
  await syncDirectory(join(path, ".."));
}

async function writeState(path: string, state: TrainingState, model: LoadedModel): Promise<void> {
  await mkdir(path);
  const record = `${JSON.stringify(state.record, null, 1)}\n`;
  await allWritten([
    saveModel(path, model, state.weights),
    writeOptimizerFile(join(path, "optimizer.safetensors"), state.optimizer),
    writeDurably(join(path, "outrigger.json"), record),
  ]);
  await syncDirectory(join(path, ".."));
}

async function readState(path: string, model: LoadedModel): Promise<TrainingState> {
  const recordPath = join(path, "outrigger.json");
  let text: string;
  try {
    text = await readFile(recordPath, "utf8");
  } catch {
    throw missing(path);
  }
  return {
    record: parseStateRecord(text, recordPath),
    weights: await readModelWeights(path, model.config),
    optimizer: await readOptimizerFile(join(path, "optimizer.safetensors")),
  };
}

/** Hard links where the file system has them, copies where it has not. */
async function shareFiles(from: string, to: string): Promise<void> {
  await mkdir(to);
  for (const name of await readdir(from)) {
    try {
      await link(join(from, name), join(to, name));
    } catch {
      await copyFile(join(from, name), join(to, name));
    }
  }
  await syncDirectory(to);
}

/** Removes all but the current state and the one before, and what a kill left half written. */
async function prune(versions: string, now: string, before: string | undefined): Promise<void> {
  const kept = new Set([now, before].filter((name) => name !== undefined).slice(0, keptVersions));
  for (const name of await readdir(versions)) {
    if (!kept.has(name)) await rm(join(versions, name), { recursive: true, force: true });
  }
}
