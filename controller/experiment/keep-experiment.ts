import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { writeAtomically } from "../run-directory.ts";
import type { Experiment } from "./load-experiment.ts";

/**
 * What may change between two sessions of a run: how long and how fast it goes, what is watched and
 * kept, where the file is. Everything else makes the steps before and after another experiment.
 */
const harmless: readonly RegExp[] = [
  /^file$/,
  /^schedule\.(steps|drainLimitMs|holdLimitMs)$/,
  /^harness\.(concurrency|timeoutMs|killGraceMs|maxOutputBytes)$/,
  /^reward\.verifier\.(timeoutMs|retries)$/,
  /^tasks\.(train|heldOut)\.timeoutMs$/,
  /^backend\.(compute|concurrency|apiKeyVariable|engines\.apiKeyVariable)$/,
  /^(evaluation|limits|capture|retention)\./,
];

/** Values that may be secret are not repeated. */
const secret = /^(harness|reward\.verifier)\.environment\./;

/**
 * Keeps the experiment in the run's directory as `experiment.json`. A later session must bring the
 * same one, but for what is harmless.
 *
 * @throws OutriggerError `experiment-differs` (user) that lists every path with both values
 */
export function keepExperiment(directory: string, experiment: Experiment): void {
  const file = join(directory, "experiment.json");
  const kept = readKept(file);
  const differences = kept === undefined ? [] : experimentDifferences(kept, experiment);
  if (differences.length > 0) {
    const lines = differences.map((line) => `  ${line}`).join("\n");
    throw new OutriggerError(
      "experiment-differs",
      `${experiment.file} is not the experiment that this run began with:\n${lines}`,
      {
        origin: "user",
        hint: "Undo these changes to go on, or start a new run with them (without --resume).",
      },
    );
  }
  writeAtomically(file, `${JSON.stringify(experiment, null, 2)}\n`);
}

function readKept(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    // A new run, or one whose file was removed: nothing to hold it against.
    return undefined;
  }
}

/** One line for each path that differs and should not. */
export function experimentDifferences(kept: unknown, now: Experiment): readonly string[] {
  const before = leavesOf(kept);
  const after = leavesOf(JSON.parse(JSON.stringify(now)));
  const paths = [...new Set([...before.keys(), ...after.keys()])].sort();
  return paths.flatMap((path) => {
    const [was, is] = [before.get(path), after.get(path)];
    if (was === is || harmless.some((pattern) => pattern.test(path))) return [];
    if (secret.test(path)) return [`${path}: changed`];
    const name = path === "seedOfFile" ? "seed" : path;
    return [`${name}: ${was ?? "absent"} in the run, ${is ?? "absent"} now`];
  });
}

/** Paths in the experiment's own folder are compared from there: the folder may be moved. */
function leavesOf(experiment: unknown): ReadonlyMap<string, string> {
  const file = (experiment as { file?: unknown } | null)?.file;
  const folder = typeof file === "string" ? `${dirname(file)}/` : undefined;
  const leaves = new Map<string, string>();
  const visit = (path: string, value: unknown): void => {
    if (typeof value === "object" && value !== null && Object.keys(value).length > 0) {
      for (const [key, inner] of Object.entries(value)) {
        visit(path === "" ? key : `${path}.${key}`, inner);
      }
    } else leaves.set(path, JSON.stringify(typeof value === "string" ? plain(path, value) : value));
  };
  const plain = (path: string, text: string): string => {
    // `node` was made the Node of that session, which may have been updated.
    if (path.endsWith(".command.0") && basename(text) === "node") return "node";
    return folder !== undefined && text.startsWith(folder)
      ? `./${text.slice(folder.length)}`
      : text;
  };
  visit("", experiment);
  return leaves;
}
