import type { Experiment } from "../experiment/load-experiment.ts";
import type { Task } from "../experiment/read-tasks.ts";
import { verifierFailed, verifierFailureOf } from "../grading/verifier-failure.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore, StoredRollout } from "../store/rollout-store.ts";
import type { StepStore } from "../store/step-store.ts";
import type { ChangeSignal } from "./change-signal.ts";
import type { EvaluationResult, RunObserver } from "./run-observer.ts";

export interface EvaluationContext {
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly calls: Pick<CallStore, "removeRollout">;
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
 * was interrupted goes on with the rollouts that are missing; a finished one is not made again, one
 * that the verifier spoilt is.
 *
 * @throws OutriggerError `verifier-failed` (user) when no rollout has a reward because of it
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
  await removeUngraded(context, purpose, tasks.length);
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
      const failure = await verifierFailureOf(rollouts, over);
      if (failure !== undefined) throw verifierFailed(evaluationName(step), over.length, failure);
      const result = summarise(over, settings.passReward, { step, version, seconds });
      await steps.setFact(purpose, result);
      observer.evaluationDone(result);
      return result;
    }
    await changed(signal);
  }
}

function evaluationName(step: number): string {
  return step === 0 ? "the evaluation before training" : `the evaluation after step ${step}`;
}

/** What an earlier session stopped over: its verifier may have been mended. */
async function removeUngraded(
  { rollouts, calls }: EvaluationContext,
  purpose: string,
  total: number,
): Promise<void> {
  const known = (await rollouts.list({ purpose })).filter((r) => r.terminalSeq !== undefined);
  if (known.length < total || (await verifierFailureOf(rollouts, known)) === undefined) return;
  for (const { rolloutId } of known) {
    await rollouts.remove(rolloutId);
    await calls.removeRollout(rolloutId);
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
    passAt1: rewards.length === 0 ? null : passed / rollouts.length,
    meanReward:
      rewards.length === 0 ? null : rewards.reduce((sum, r) => sum + r, 0) / rewards.length,
  };
}
