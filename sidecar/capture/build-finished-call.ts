import type { CapturedChoice, CapturedUsage, CaptureResult } from "../dialects/call-capture.ts";
import { answerText } from "./answer-text.ts";
import type { DialectName, FinishedCall, FinishedChoice, StreamMode } from "./finished-call.ts";

export interface CallFacts {
  readonly requestId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly dialect: DialectName;
  readonly model: string;
  readonly streamMode: StreamMode;
  readonly policyVersion: number;
  readonly engine: string | undefined;
  readonly delivered: boolean;
  readonly retryOf: string | undefined;
  readonly replayOf: string | undefined;
  readonly sideCallClass: string | undefined;
  readonly sessionId: string | undefined;
  readonly errorReason: string | undefined;
  readonly httpStatus: number;
  readonly timing: FinishedCall["timing"];
  readonly requestBody: Buffer;
  readonly errorBody: Buffer | undefined;
  readonly capturesText: boolean;
  readonly dropped: readonly string[];
  readonly samplingJson: string;
  /** Why nothing of this call may be trained on, whatever the engine said; e.g. `canary-failed`. */
  readonly untrainable: string | undefined;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/**
 * One record out of what a call was and what the engine answered. Written out member by member:
 * it is made for every call, and spreading cost as much as the rest of the capture.
 */
export function buildFinishedCall(facts: CallFacts, result: CaptureResult): FinishedCall {
  const promptIds = result.choices.find((choice) => choice.promptIds !== null)?.promptIds ?? null;
  const call: Mutable<FinishedCall> = {
    requestId: facts.requestId,
    rolloutId: facts.rolloutId,
    attemptId: facts.attemptId,
    dialect: facts.dialect,
    streamMode: facts.streamMode,
    model: facts.model,
    policyVersion: facts.policyVersion,
    promptIds,
    choices: result.choices.map((choice) => buildChoice(facts, choice, promptIds)),
    usage: result.usage === null ? null : buildUsage(result.usage),
    delivered: facts.delivered,
    httpStatus: facts.httpStatus,
    timing: facts.timing,
    droppedRequestParts: facts.dropped,
    samplingJson: facts.samplingJson,
  };
  if (facts.retryOf !== undefined) call.retryOf = facts.retryOf;
  if (facts.replayOf !== undefined) call.replayOf = facts.replayOf;
  if (facts.sideCallClass !== undefined) call.sideCallClass = facts.sideCallClass;
  if (facts.sessionId !== undefined) call.sessionId = facts.sessionId;
  if (facts.errorReason !== undefined) call.errorReason = facts.errorReason;
  if (facts.engine !== undefined) call.engine = facts.engine;
  if (facts.capturesText) {
    call.requestText = facts.requestBody;
    call.responseText = facts.errorBody ?? answerText(result);
  }
  return call;
}

function buildUsage({ promptTokens, completionTokens, cachedTokens }: CapturedUsage) {
  return { promptTokens, completionTokens, cachedTokens };
}

function buildChoice(
  facts: CallFacts,
  choice: CapturedChoice,
  promptIds: Int32Array | null,
): FinishedChoice {
  const length = choice.responseIds?.length ?? 0;
  // A record has one prompt; a text completion of several has choices that were sampled elsewhere.
  const isElsewhere = choice.promptIds !== promptIds && !isSame(choice.promptIds, promptIds);
  const incompleteReason =
    choice.incompleteReason ?? (isElsewhere ? "prompt-of-another-choice" : facts.untrainable);
  return {
    callId: `${facts.requestId}.${choice.choiceIndex}`,
    index: choice.choiceIndex,
    responseIds: choice.responseIds,
    logprobs: choice.logprobs,
    finishReason: choice.finishReason,
    stopReason: choice.stopReason,
    policyVersions:
      choice.policyVersions ??
      (length === 0 ? [] : [{ version: facts.policyVersion, start: 0, end: length }]),
    complete: incompleteReason === undefined,
    ...(incompleteReason === undefined ? {} : { incompleteReason }),
  };
}

function isSame(one: Int32Array | null, other: Int32Array | null): boolean {
  if (one === null || other === null || one.length !== other.length) return false;
  return one.every((id, at) => id === other[at]);
}
