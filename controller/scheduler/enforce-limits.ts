import { OutriggerError } from "../../core/outrigger-error.ts";
import type { Experiment } from "../experiment/load-experiment.ts";
import { checkLimits } from "./check-limits.ts";
import type { FinishedUpdate } from "./update-runner.ts";

/** @throws OutriggerError `limits-exceeded` when a step is beyond what the experiment allows */
export function enforceLimits(
  { metrics, capture }: FinishedUpdate,
  limits: Experiment["limits"],
  warn: (message: string) => void,
): void {
  const { step } = metrics;
  const { warnings, stops } = checkLimits(metrics, limits, capture);
  for (const warning of warnings) warn(`step ${step}: ${warning}`);
  if (stops.length === 0) return;
  throw new OutriggerError(
    "limits-exceeded",
    `the run stops after step ${step}:\n${stops.map((line) => `  ${line}`).join("\n")}`,
    {
      origin: "controller",
      hint: "Look at the rollouts with `outrigger rollouts list`, mend the cause, then --resume; or raise the limit in the experiment file.",
    },
  );
}
