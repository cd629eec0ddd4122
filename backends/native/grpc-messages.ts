import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { TrainingSample } from "../../core/sample.ts";
import type {
  OffPolicyCorrection,
  PolicyLoss,
  UpdateResult,
  UpdateSettings,
} from "../../core/trainer-backend.ts";
import {
  type OffPolicyCorrection as CorrectionMessage,
  type PolicyLoss as LossMessage,
  type OffPolicyCorrectionSchema,
  type PolicyLossSchema,
  type UpdateResult as ResultMessage,
  type UpdateSample as SampleMessage,
  type UpdateSettings as SettingsMessage,
  type UpdateResultSchema,
  UpdateSampleSchema,
  type UpdateSettingsSchema,
} from "../../proto/gen/outrigger/v1/trainer_pb.ts";

const invalid = (message: string): OutriggerError =>
  new OutriggerError("update-settings-invalid", message, {
    origin: "backend",
    hint: "Controller and backend are probably of different releases.",
  });

export function encodeSettings(
  settings: UpdateSettings,
): MessageInitShape<typeof UpdateSettingsSchema> {
  const { loss, correction, maxGradNorm, ...numbers } = settings;
  return {
    ...numbers,
    loss: encodeLoss(loss),
    correction: encodeCorrection(correction),
    ...(maxGradNorm === undefined ? {} : { maxGradNorm }),
  };
}

function encodeLoss(loss: PolicyLoss): MessageInitShape<typeof PolicyLossSchema> {
  if (loss.kind === "importance-sampling") return { kind: loss.kind };
  const dualClip = loss.kind === "ppo" ? loss.dualClip : undefined;
  return {
    kind: loss.kind,
    clipLow: loss.clipLow,
    clipHigh: loss.clipHigh,
    ...(dualClip === undefined ? {} : { dualClip }),
  };
}

function encodeCorrection(
  correction: OffPolicyCorrection,
): MessageInitShape<typeof OffPolicyCorrectionSchema> {
  return { ...correction };
}

export function decodeSettings(message: SettingsMessage): UpdateSettings {
  if (message.loss === undefined) throw invalid("the update has no loss");
  return {
    loss: decodeLoss(message.loss),
    correction: decodeCorrection(message.correction),
    klCoefficient: message.klCoefficient,
    learningRate: message.learningRate,
    beta1: message.beta1,
    beta2: message.beta2,
    epsilon: message.epsilon,
    weightDecay: message.weightDecay,
    temperature: message.temperature,
    ...(message.maxGradNorm === undefined ? {} : { maxGradNorm: message.maxGradNorm }),
  };
}

function decodeLoss({ kind, clipLow, clipHigh, dualClip }: LossMessage): PolicyLoss {
  switch (kind) {
    case "importance-sampling":
      return { kind };
    case "ppo":
      return { kind, clipLow, clipHigh, ...(dualClip === undefined ? {} : { dualClip }) };
    case "cispo":
    case "gspo":
      return { kind, clipLow, clipHigh };
    default:
      throw invalid(`loss ${JSON.stringify(kind)} is not known to the native backend`);
  }
}

function decodeCorrection(message: CorrectionMessage | undefined): OffPolicyCorrection {
  if (message === undefined || message.kind === "none") return { kind: "none" };
  const { kind, level, min, max } = message;
  if (level !== "token" && level !== "sequence") {
    throw invalid(`correction level ${JSON.stringify(level)} is not known`);
  }
  if (kind === "truncate") return { kind, level, max };
  if (kind === "mask") return { kind, level, min, max };
  throw invalid(`correction ${JSON.stringify(kind)} is not known to the native backend`);
}

export function encodeSample(sample: TrainingSample): SampleMessage {
  return create(UpdateSampleSchema, {
    rolloutId: sample.rolloutId,
    attemptId: sample.attemptId,
    groupId: sample.groupId,
    tokenIds: Array.from(sample.tokenIds),
    lossMask: sample.lossMask,
    samplingLogprobs: Array.from(sample.samplingLogprobs),
    policyVersions: Array.from(sample.policyVersions, BigInt),
    advantages: Array.from(sample.advantages),
    weights: Array.from(sample.weights),
    callIds: [...sample.callIds],
    responseStarts: Array.from(sample.responseStarts ?? []),
  });
}

export function decodeSample(message: SampleMessage): TrainingSample {
  return {
    rolloutId: message.rolloutId,
    attemptId: message.attemptId,
    groupId: message.groupId,
    tokenIds: Int32Array.from(message.tokenIds),
    lossMask: message.lossMask,
    samplingLogprobs: Float32Array.from(message.samplingLogprobs),
    policyVersions: Int32Array.from(message.policyVersions, Number),
    advantages: Float32Array.from(message.advantages),
    weights: Float32Array.from(message.weights),
    callIds: message.callIds,
    ...(message.responseStarts.length > 0 && {
      responseStarts: Int32Array.from(message.responseStarts),
    }),
  };
}

export function encodeResult(result: UpdateResult): MessageInitShape<typeof UpdateResultSchema> {
  const { logprobGap, version, metrics, ...plain } = result;
  return {
    ...plain,
    version: BigInt(version),
    logprobGapMeanAbs: logprobGap.meanAbs,
    logprobGapP99Abs: logprobGap.p99Abs,
    logprobGapMaxAbs: logprobGap.maxAbs,
    logprobGapKl: logprobGap.kl,
    metrics: { ...metrics },
  };
}

export function decodeResult(message: ResultMessage): UpdateResult {
  return {
    updateId: message.updateId,
    version: Number(message.version),
    applied: message.applied,
    sampleCount: message.sampleCount,
    trainedTokenCount: message.trainedTokenCount,
    loss: message.loss,
    gradNorm: message.gradNorm,
    logprobGap: {
      meanAbs: message.logprobGapMeanAbs,
      p99Abs: message.logprobGapP99Abs,
      maxAbs: message.logprobGapMaxAbs,
      kl: message.logprobGapKl,
    },
    meanRatio: message.meanRatio,
    clippedFraction: message.clippedFraction,
    metrics: { ...message.metrics },
  };
}
