import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { TrainingSample } from "../../../core/sample.ts";
import type { UpdateSettings } from "../../../core/trainer-backend.ts";
import type { ModelConfig } from "../model/model-config.ts";

const invalid = (reason: string, message: string, hint: string): OutriggerError =>
  new OutriggerError(reason, message, { origin: "backend", hint });

export const updateNotFinite = (message: string, cause?: unknown): OutriggerError =>
  new OutriggerError("update-not-finite", `${message}; the weights are unchanged`, {
    origin: "backend",
    hint: "Look for NaN rewards, advantages or logprobs in the batch, or lower the learning rate.",
    ...(cause === undefined ? {} : { cause }),
  });

/** Refuses settings that cannot be meant. */
export function checkUpdateSettings(settings: UpdateSettings): void {
  const { loss, correction } = settings;
  const refuse = (field: string, value: unknown, wanted: string): never => {
    throw invalid(
      "update-settings-invalid",
      `update settings: ${field} = ${String(value)}, wanted ${wanted}`,
      "Correct the experiment's algorithm section.",
    );
  };
  if (loss.kind !== "importance-sampling") {
    if (!(loss.clipLow >= 0 && loss.clipLow <= 1)) {
      refuse("clipLow", loss.clipLow, "a lower bound of the ratio, from 0 to 1 (0.8 for ε = 0.2)");
    }
    if (!(loss.clipHigh >= 1)) {
      refuse("clipHigh", loss.clipHigh, "an upper bound of the ratio, 1 or more (1.2 for ε = 0.2)");
    }
  }
  if (loss.kind === "ppo" && loss.dualClip !== undefined && !(loss.dualClip > 1)) {
    refuse("dualClip", loss.dualClip, "a bound above 1");
  }
  if (correction.kind !== "none" && !(correction.max > 0)) {
    refuse("correction max", correction.max, "a ratio above 0");
  }
  if (correction.kind === "mask" && !(correction.min >= 0 && correction.min <= correction.max)) {
    refuse("correction min", correction.min, "a ratio from 0 to max");
  }
  const numbers: [string, number, boolean][] = [
    ["temperature", settings.temperature, settings.temperature > 0],
    ["klCoefficient", settings.klCoefficient, settings.klCoefficient >= 0],
    ["learningRate", settings.learningRate, settings.learningRate >= 0],
    ["beta1", settings.beta1, settings.beta1 >= 0 && settings.beta1 < 1],
    ["beta2", settings.beta2, settings.beta2 >= 0 && settings.beta2 < 1],
    ["epsilon", settings.epsilon, settings.epsilon >= 0],
    ["weightDecay", settings.weightDecay, settings.weightDecay >= 0],
    ["maxGradNorm", settings.maxGradNorm ?? 1, (settings.maxGradNorm ?? 1) > 0],
  ];
  for (const [field, value, isInRange] of numbers) {
    if (!Number.isFinite(value) || !isInRange) refuse(field, value, "a finite number in range");
  }
}

/** Refuses a sample that cannot be trained as it is; nothing is dropped or cut silently. */
export function checkSample(
  sample: TrainingSample,
  config: Pick<ModelConfig, "vocabSize">,
  maxLength: number,
): void {
  const length = sample.tokenIds.length;
  const where = `sample of rollout ${sample.rolloutId}, attempt ${sample.attemptId}`;
  const refuse = (message: string): never => {
    throw invalid("sample-invalid", `${where}: ${message}`, "The sample was built wrongly.");
  };
  if (length > maxLength) {
    throw invalid(
      "sample-too-long",
      `${where} has ${length} tokens, the model takes ${maxLength}`,
      "Set the experiment's over-length policy to the backend's maximum.",
    );
  }
  const { lossMask, samplingLogprobs, policyVersions, advantages, weights } = sample;
  const arrays = { lossMask, samplingLogprobs, policyVersions, advantages, weights };
  for (const [name, values] of Object.entries(arrays)) {
    if (values.length !== length)
      refuse(`${name} has ${values.length} entries for ${length} tokens`);
  }
  if (length > 0 && lossMask[0] === 1)
    refuse("its first token is to be trained, but nothing predicts it");
  for (let t = 0; t < length; t++) {
    const id = sample.tokenIds[t] as number;
    if (id < 0 || id >= config.vocabSize) refuse(`token id ${id} at ${t} is not in the vocabulary`);
    if (lossMask[t] !== 1) continue;
    const logprob = samplingLogprobs[t] as number;
    if (logprob > 1e-3) refuse(`sampling logprob ${logprob} at ${t} is above 0`);
    for (const [name, value] of [
      ["sampling logprob", logprob],
      ["advantage", advantages[t] as number],
      ["weight", weights[t] as number],
    ] as const) {
      if (!Number.isFinite(value)) throw updateNotFinite(`${where}: ${name} at ${t} is ${value}`);
    }
  }
}

export function hasTrainedToken({ lossMask, weights }: TrainingSample): boolean {
  return lossMask.some((mask, t) => mask === 1 && weights[t] !== 0);
}
