import type { Experiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";
import type { RolloutStore, StoredRollout } from "../store/rollout-store.ts";
import type { StepStore } from "../store/step-store.ts";
import type { ChangeSignal } from "./change-signal.ts";
import type { EvaluationResult, RunObserver } from "./run-observer.ts";

export interface EvaluationContext {
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly changed: ChangeSignal;
  readonly observer: RunObserver;
  readonly settings: Experiment["evaluation"];
  readonly tasks: readonly Task[];
  wakeDispatcher(): void;
  /** Throws what made going on pointless. */
  throwIfFailed(): void;
  readonly now: () => number;
}

/** Name of an evaluation among the purposes of rollouts. */
export function evaluationPurpose(step: number): string {
  return `eval-${step}`;
}

/**
 * Runs every held-out task once with the present policy and notes the result. An evaluation that
 * was interrupted goes on with the rollouts that are missing; a finished one is not made again.
 */
export async function evaluate(
  context: EvaluationContext,
  step: number,
  version: number,
  signal: AbortSignal,
): Promise<EvaluationResult> {
  const { rollouts, steps, settings, observer } = context;
  const purpose = evaluationPurpose(step);
  const known = await steps.fact<EvaluationResult>(purpose);
  if (known !== undefined) return known;
  const startedAtMs = context.now();
  const tasks = context.tasks.slice(0, settings.count);
  await rollouts.create(
    tasks.map((task, index) => ({
      rolloutId: `${purpose}-${index}`,
      mode: "eval" as const,
      purpose,
      taskId: task.taskId,
      input: task.fields,
    })),
    startedAtMs,
  );
  observer.evaluationStarted(step, tasks.length);
  context.wakeDispatcher();
  for (;;) {
    const changed = context.changed.next();
    context.throwIfFailed();
    const over = (await rollouts.list({ purpose })).filter((r) => r.terminalSeq !== undefined);
    observer.evaluationProgress(step, over.length, passedOf(over, settings.passReward));
    if (over.length === tasks.length) {
      const seconds = (context.now() - startedAtMs) / 1000;
      const result = summarise(over, settings.passReward, { step, version, seconds });
      await steps.setFact(purpose, result);
      observer.evaluationDone(result);
      return result;
    }
    await changed(signal);
  }
}

function passedOf(rollouts: readonly StoredRollout[], passReward: number): number {
  return rollouts.filter((r) => r.reward !== undefined && r.reward >= passReward).length;
}

function summarise(
  rollouts: readonly StoredRollout[],
  passReward: number,
  facts: { readonly step: number; readonly version: number; readonly seconds: number },
): EvaluationResult {
  const rewards = rollouts.flatMap((r) => (r.reward === undefined ? [] : [r.reward]));
  const passed = passedOf(rollouts, passReward);
  return {
    ...facts,
    passed,
    graded: rewards.length,
    total: rollouts.length,
    passAt1: rollouts.length === 0 ? 0 : passed / rollouts.length,
    meanReward:
      rewards.length === 0 ? null : rewards.reduce((sum, r) => sum + r, 0) / rewards.length,
  };
}
