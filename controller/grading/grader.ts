import type { StoredEvent } from "../store/call-store.ts";
import type { Grade, GradeRequest } from "./grade.ts";
import { PersistentVerifier } from "./persistent-verifier.ts";
import { type VerifierSpec, verifyInProcess } from "./verify-in-process.ts";

export interface Grader {
  grade(request: GradeRequest, signal: AbortSignal): Promise<Grade>;
  close(): Promise<void>;
}

/** The experiment's verifier; a failed grading is tried again, then given back as failed. */
export function openVerifier(
  spec: VerifierSpec & {
    readonly mode: "process" | "persistent";
    readonly retries: number;
    readonly cwd: string;
  },
): Grader {
  const persistent = spec.mode === "persistent" ? new PersistentVerifier(spec) : undefined;
  const once = (request: GradeRequest, signal: AbortSignal): Promise<Grade> =>
    persistent === undefined
      ? verifyInProcess(spec, request, signal)
      : persistent.grade(request, signal);
  return {
    grade: async (request, signal) => {
      let grade = await once(request, signal);
      for (let retry = 0; retry < spec.retries && grade.kind === "failed"; retry += 1) {
        if (signal.aborted) break;
        grade = await once(request, signal);
      }
      return grade;
    },
    close: async () => persistent?.close(),
  };
}

/** The reward from what was posted as `reward` events; non-numbers are passed over. */
export function gradeFromEvents(
  events: readonly Pick<StoredEvent, "eventType" | "dataJson">[],
  combine: "last" | "sum" | "max",
): Grade {
  const values = events
    .filter((event) => event.eventType === "reward")
    .map((event) => rewardValue(event.dataJson))
    .filter((value) => value !== undefined);
  if (values.length === 0) return { kind: "silent" };
  switch (combine) {
    case "last":
      return { kind: "reward", reward: values.at(-1) as number };
    case "sum":
      return { kind: "reward", reward: values.reduce((sum, value) => sum + value, 0) };
    case "max":
      return { kind: "reward", reward: Math.max(...values) };
  }
}

function rewardValue(dataJson: string): number | undefined {
  try {
    const data = JSON.parse(dataJson) as unknown;
    const value =
      typeof data === "object" && data !== null ? (data as { value?: unknown }).value : data;
    return typeof value === "number" ? value : undefined;
  } catch {
    return undefined;
  }
}
