import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { StepMetrics } from "../scheduler/step-metrics.ts";
import { openRunStores } from "../store/open-run-stores.ts";
import type { RunResult } from "./build-result.ts";

/** What a run's directory says about it. */
export interface RecordedRun {
  readonly directory: string;
  readonly result: RunResult;
  /** In order; the training curve. */
  readonly steps: readonly StepMetrics[];
  /** The experiment as it ran, defaults filled in. */
  readonly settings: Readonly<Record<string, unknown>>;
}

/**
 * Reads a run that has ended, also one that was stopped or failed.
 *
 * @throws OutriggerError `run-missing`, `run-unfinished`, `run-unreadable` (origin user)
 */
export async function readRun(path: string): Promise<RecordedRun> {
  const directory = resolve(path);
  if (!existsSync(join(directory, "run.json"))) {
    throw new OutriggerError("run-missing", `${directory} is not the directory of a run`, {
      origin: "user",
      hint: "Runs are below .outrigger/runs unless --out named another place.",
    });
  }
  const json = (name: string): unknown => {
    const file = join(directory, name);
    if (!existsSync(file)) {
      throw new OutriggerError("run-unfinished", `${directory} has no ${name}`, {
        origin: "user",
        hint: "It is written when a session of the run ends; end it, or go on with --resume.",
      });
    }
    try {
      return JSON.parse(readFileSync(file, "utf8"));
    } catch (cause) {
      throw new OutriggerError("run-unreadable", `${file} is not JSON`, { origin: "user", cause });
    }
  };
  const result = json("result.json") as RunResult;
  const settings = json("experiment.json") as RecordedRun["settings"];
  const stores = await openRunStores(directory);
  try {
    const known = await stores.steps.steps<StepMetrics>();
    const steps = known.flatMap(({ metrics }) => (metrics === undefined ? [] : [metrics]));
    return { directory, result, steps, settings };
  } finally {
    await stores.close();
  }
}
