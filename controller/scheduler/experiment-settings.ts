import { learningRateAt } from "../../core/learning-rate.ts";
import type { ScheduleSettings } from "../../core/scheduling/decide-schedule.ts";
import type { UpdateSettings } from "../../core/trainer-backend.ts";
import type { TrainingSettings } from "../../core/weights/build-training-samples.ts";
import type { Experiment } from "../experiment/load-experiment.ts";

type Defined<T> = T extends object
  ? { [K in keyof T]: Defined<Exclude<T[K], undefined>> }
  : Exclude<T, undefined>;

/** Leaves out what is undefined: in the core an absent setting has no key. */
function defined<T>(value: T): Defined<T> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return value as Defined<T>;
  }
  const entries = Object.entries(value).filter(([, v]) => v !== undefined);
  return Object.fromEntries(entries.map(([k, v]) => [k, defined(v)])) as Defined<T>;
}

/** @param stepIndex of the update, from 0: the learning rate follows its schedule. */
export function updateSettingsOf(experiment: Experiment, stepIndex: number): UpdateSettings {
  const { algorithm, sampling, schedule } = experiment;
  const { beta1, beta2, epsilon, weightDecay, maxGradNorm, klCoefficient } = algorithm;
  return {
    loss: defined(algorithm.loss),
    correction: algorithm.correction,
    klCoefficient,
    learningRate: learningRateAt(
      algorithm.learningRate,
      algorithm.learningRateSchedule,
      stepIndex + 1,
      schedule.steps,
    ),
    beta1,
    beta2,
    epsilon,
    weightDecay,
    maxGradNorm,
    temperature: sampling.train.temperature ?? 1,
  };
}

export function trainingSettingsOf({ algorithm }: Experiment): TrainingSettings {
  return {
    advantages: defined(algorithm.advantages) as TrainingSettings["advantages"],
    weighting: algorithm.weighting,
    dropsZeroSignalGroups: algorithm.dropsZeroSignalGroups,
  };
}

export function scheduleSettingsOf({ schedule, harness }: Experiment): ScheduleSettings {
  return {
    kind: schedule.kind,
    groupsPerStep: schedule.groupsPerStep,
    maxStaleness: schedule.maxStalenessSteps,
    onStale: schedule.onStale,
    tail: schedule.tail,
    // A queue of one group beyond what runs keeps every slot busy.
    targetRolloutCount: harness.concurrency + schedule.groupSize,
  };
}

/** Members that replace the harness's own in its requests, in the engines' names. */
export function samplingOverrides(
  parameters: Experiment["sampling"]["train"],
): Readonly<Record<string, number>> {
  const { temperature, topP, topK, maxTokens } = parameters;
  return {
    ...(temperature !== undefined && { temperature }),
    ...(topP !== undefined && { top_p: topP }),
    ...(topK !== undefined && { top_k: topK }),
    ...(maxTokens !== undefined && { max_tokens: maxTokens }),
  };
}
