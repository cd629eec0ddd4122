import { OutriggerError } from "../../core/outrigger-error.ts";
import type { StoredStep } from "../store/step-store.ts";
import type { StepMetrics } from "./step-metrics.ts";

/** The backend must be where the last durable step or rollback left it, or one update further. */
export function checkVersion(
  version: number,
  steps: readonly StoredStep[],
  rolledBackTo = 0,
): void {
  const last = steps.at(-1);
  const metrics = last?.metrics as StepMetrics | undefined;
  const isRunning = last?.state === "updating";
  const expected = isRunning ? last.fromVersion : Math.max(metrics?.version ?? 0, rolledBackTo);
  if (version === expected || (isRunning && version === last.fromVersion + 1)) return;
  throw new OutriggerError(
    "backend-version-mismatch",
    `the backend is at policy version ${version}, the run at ${expected}`,
    {
      origin: "backend",
      hint: "The run's directory and the backend's state do not belong together; start a new run.",
    },
  );
}
