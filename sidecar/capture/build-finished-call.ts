import type { CapturedChoice, CaptureResult } from "../dialects/call-capture.ts";
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

/** One record out of what a call was and what the engine answered. */
export function buildFinishedCall(facts: CallFacts, result: CaptureResult): FinishedCall {
  const { requestBody, errorBody, capturesText, dropped, untrainable: _, ...rest } = facts;
  const { retryOf, replayOf, sideCallClass, sessionId, errorReason, engine, ...plain } = rest;
  const promptIds = result.choices.find((choice) => choice.promptIds !== null)?.promptIds ?? null;
  return {
    ...plain,
    promptIds,
    choices: result.choices.map((choice) => buildChoice(facts, choice)),
    usage:
      result.usage === null
        ? null
        : {
            promptTokens: result.usage.promptTokens,
            completionTokens: result.usage.completionTokens,
            cachedTokens: result.usage.cachedTokens,
          },
    droppedRequestParts: dropped,
    ...(retryOf === undefined ? {} : { retryOf }),
    ...(replayOf === undefined ? {} : { replayOf }),
    ...(sideCallClass === undefined ? {} : { sideCallClass }),
    ...(sessionId === undefined ? {} : { sessionId }),
    ...(errorReason === undefined ? {} : { errorReason }),
    ...(engine === undefined ? {} : { engine }),
    ...(capturesText
      ? { requestText: requestBody, responseText: errorBody ?? answerText(result) }
      : {}),
  };
}

function buildChoice(facts: CallFacts, choice: CapturedChoice): FinishedChoice {
  const length = choice.responseIds?.length ?? 0;
  const incompleteReason = choice.incompleteReason ?? facts.untrainable;
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
