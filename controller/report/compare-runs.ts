import type { RecordedRun } from "./read-run.ts";

/** Runs side by side: `comparison.json`. Every array has one entry per run, in the same order. */
export interface RunComparison {
  readonly runs: readonly {
    /** Short and different for each: `native: calculator-1`. */
    readonly label: string;
    readonly name: string;
    readonly runId: string;
    readonly directory: string;
  }[];
  readonly facts: readonly { readonly name: string; readonly values: readonly Fact[] }[];
  /** Settings of the experiments that are not the same in all; null: not set in that run. */
  readonly settings: readonly { readonly path: string; readonly values: readonly unknown[] }[];
  readonly rewardCurves: readonly (readonly Point[])[];
  readonly passCurves: readonly (readonly Point[])[];
  readonly gradNormCurves: readonly (readonly Point[])[];
  readonly gapCurves: readonly (readonly Point[])[];
}

type Fact = string | number | null;
/** Optimizer step and value. */
export type Point = readonly [number, number];

function passPoints({ evaluations }: RecordedRun["result"]): readonly Point[] {
  return evaluations.flatMap(({ step, passAt1 }): Point[] =>
    passAt1 === null ? [] : [[step, passAt1]],
  );
}

/** Two runs or more, compared by what their directories say. */
export function compareRuns(runs: readonly RecordedRun[]): RunComparison {
  const fact = (name: string, valueOf: (run: RecordedRun) => Fact): RunComparison["facts"][0] => ({
    name,
    values: runs.map(valueOf),
  });
  return {
    runs: runs.map((run, index) => ({
      label: labelOf(run, index, runs),
      name: run.result.name,
      runId: run.result.runId,
      directory: run.directory,
    })),
    facts: [
      fact("backend", backendOf),
      fact("state", ({ result }) => result.state),
      fact("pass@1 before", ({ result }) => result.passAt1.before),
      fact("pass@1 after", ({ result }) => result.passAt1.after),
      fact("pass@1 gained", ({ result: { passAt1 } }) =>
        passAt1.before === null || passAt1.after === null ? null : passAt1.after - passAt1.before,
      ),
      fact("steps", ({ result }) => result.steps),
      fact("rollouts", ({ result }) => result.rollouts.total),
      fact("calls captured", ({ result }) => result.calls.captured),
      fact("calls incomplete", ({ result }) => result.calls.incomplete),
      fact("trained tokens", ({ result }) => result.tokens),
      fact("mean |Δ logprob|", ({ result }) => result.logprobGap?.meanAbs ?? null),
      fact("seconds sampling", ({ steps }) => sum(steps.map((s) => s.seconds.sampling))),
      fact("seconds updating", ({ steps }) => sum(steps.map((s) => s.seconds.update))),
      fact("seconds in all", ({ result }) => result.wallSeconds),
      fact("compute", ({ result }) => result.compute),
    ],
    // Where the experiment's file lay, and a seed that was overridden, say nothing about the run.
    settings: differingSettings(
      runs.map(({ settings: { file: _file, seedOfFile: _seed, ...rest } }) => rest),
    ),
    rewardCurves: runs.map(({ steps }) => points(steps, (s) => s.reward?.mean)),
    passCurves: runs.map(({ result }) => passPoints(result)),
    gradNormCurves: runs.map(({ steps }) =>
      points(steps, (s) => (s.applied ? s.gradNorm : undefined)),
    ),
    gapCurves: runs.map(({ steps }) =>
      points(steps, (s) => (s.logprobGap.meanAbs > 0 ? s.logprobGap.meanAbs : undefined)),
    ),
  };
}

const sum = (values: readonly number[]): number => values.reduce((all, value) => all + value, 0);

function backendOf({ settings }: RecordedRun): string {
  const backend = settings["backend"] as { readonly kind?: unknown } | undefined;
  return typeof backend?.kind === "string" ? backend.kind : "unknown";
}

/** The backend's kind where that tells them apart, else the directory's name, else a number too. */
function labelOf(run: RecordedRun, index: number, all: readonly RecordedRun[]): string {
  const candidates = [
    backendOf,
    ({ result }: RecordedRun) => result.name,
    ({ directory }: RecordedRun) => directory.split("/").at(-1) ?? directory,
  ];
  for (const candidate of candidates) {
    if (new Set(all.map(candidate)).size === all.length) return candidate(run);
  }
  return `${index + 1}: ${run.result.name}`;
}

function points<T extends { readonly step: number }>(
  steps: readonly T[],
  valueOf: (step: T) => number | null | undefined,
): Point[] {
  return steps.flatMap((step): Point[] => {
    const value = valueOf(step);
    return value === null || value === undefined || !Number.isFinite(value)
      ? []
      : [[step.step, value]];
  });
}

/** Members whose values are not the same everywhere, by path, in order of the path. */
export function differingSettings(
  all: readonly Readonly<Record<string, unknown>>[],
): RunComparison["settings"] {
  const flat = all.map((settings) => new Map(leaves(settings, [])));
  const paths = [...new Set(flat.flatMap((one) => [...one.keys()]))].sort();
  return paths.flatMap((path) => {
    const values = flat.map((one) => one.get(path) ?? null);
    return new Set(values.map((value) => JSON.stringify(value))).size === 1
      ? []
      : [{ path, values }];
  });
}

/** A list is one value: its members have no names. */
function leaves(value: unknown, path: readonly string[]): [string, unknown][] {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return [[path.join("."), value]];
  }
  return Object.entries(value).flatMap(([key, member]) => leaves(member, [...path, key]));
}
