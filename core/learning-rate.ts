export interface LearningRateSchedule {
  /** Steps over which the rate rises linearly to its peak. */
  readonly warmupSteps: number;
  readonly decay: "none" | "linear" | "cosine";
  /** How many of the last steps decay; absent: all after the warm-up. */
  readonly decaySteps?: number | undefined;
  /** The share of the peak towards which the rate falls; reached just after the last step. */
  readonly minRatio: number;
}

/**
 * The learning rate of one step: warm-up, stable, decay. It is never zero within the run, so no
 * step is spent for nothing.
 *
 * @param step counts from 1
 * @param steps of the whole run
 */
export function learningRateAt(
  peak: number,
  schedule: LearningRateSchedule,
  step: number,
  steps: number,
): number {
  const { warmupSteps, decay, minRatio } = schedule;
  if (step <= warmupSteps) return (peak * step) / (warmupSteps + 1);
  if (decay === "none") return peak;
  const decaySteps = Math.min(schedule.decaySteps ?? steps, steps - warmupSteps);
  const left = Math.max(0, Math.min(1, (steps - step + 1) / (decaySteps + 1)));
  const share = decay === "linear" ? left : 0.5 * (1 - Math.cos(Math.PI * left));
  return peak * (minRatio + (1 - minRatio) * share);
}
