import type { IncomingHttpHeaders } from "node:http";
import { recognizeHarness } from "../../adapters/recognize-harness.ts";
import { buildFinishedCall } from "../capture/build-finished-call.ts";
import type { FinishedCall } from "../capture/finished-call.ts";
import { type CaptureResult, createCallCapture } from "../dialects/call-capture.ts";
import type { PlannedCall } from "../dialects/dialect.ts";
import { parseJson } from "../dialects/json-value.ts";
import type { Engine } from "../upstream/engine.ts";
import type { RelayedRequest } from "./call-relay.ts";
import type { EngineAttempt } from "./engine-attempt.ts";
import type { CaptureSettings } from "./relay-context.ts";

export interface EndedCall {
  readonly request: RelayedRequest;
  readonly engine: Engine;
  readonly plan: PlannedCall;
  /** The last one. */
  readonly attempt: EngineAttempt;
  readonly capture: CaptureSettings;
  readonly isDelivered: boolean;
  readonly errorReason: string | undefined;
  readonly heldMs: number;
  readonly finishedAtMs: number;
}

/** The record of a call that an engine has seen. */
export function callRecord(call: EndedCall): FinishedCall {
  const { request, engine, plan, attempt, capture } = call;
  const { identity, requestId, dialect, receivedAtMs, retryOf, body, headers } = request;
  const { sentAtMs, firstByteAtMs, status } = attempt;
  const isError = status >= 300;
  const result = isError ? createCallCapture().result() : attempt.capture.result();
  return buildFinishedCall(
    {
      requestId,
      rolloutId: identity.rolloutId,
      attemptId: identity.attemptId,
      dialect: dialect.name,
      model: plan.model ?? engine.model ?? "",
      streamMode: attempt.streamMode,
      policyVersion: engine.policyVersion,
      engine: engine.url,
      delivered: call.isDelivered && !isError,
      retryOf,
      replayOf: undefined,
      sideCallClass: sideCallClass(headers, body),
      sessionId: identity.sessionId,
      errorReason: isError ? `engine-status-${status}` : (call.errorReason ?? unanswered(result)),
      httpStatus: status,
      timing: {
        receivedAtMs,
        ...(sentAtMs === undefined ? {} : { sentAtMs }),
        ...(firstByteAtMs === undefined ? {} : { firstByteAtMs }),
        finishedAtMs: call.finishedAtMs,
        heldMs: call.heldMs,
      },
      requestBody: body,
      errorBody: attempt.errorBody,
      // A setting that came in mid-call is for the next one: this answer's text was not kept.
      capturesText: capture.capturesText && attempt.keepsText,
      dropped: plan.dropped,
      samplingJson: plan.samplingJson,
      untrainable: untrainable(engine, plan, capture.requiresCanary),
    },
    result,
  );
}

export interface ReplayFacts {
  readonly requestId: string;
  readonly delivered: boolean;
  readonly receivedAtMs: number;
  readonly finishedAtMs: number;
}

/** The record of a request that got another's answer: one sampling, two records. */
export function replayRecord(original: FinishedCall, facts: ReplayFacts): FinishedCall {
  const { requestId, delivered, receivedAtMs, finishedAtMs } = facts;
  const source = original.replayOf ?? original.requestId;
  return {
    ...original,
    requestId,
    delivered,
    retryOf: original.requestId,
    replayOf: source,
    choices: original.choices.map((choice) => ({
      ...choice,
      callId: `${requestId}.${choice.index}`,
    })),
    timing: { receivedAtMs, finishedAtMs, heldMs: 0 },
  };
}

/** Titles, background requests: only the harness's adapter can tell, and only from the body. */
function sideCallClass(headers: IncomingHttpHeaders, body: Buffer): string | undefined {
  const adapter = recognizeHarness(headers);
  return adapter?.sideCallClass({ headers, body: parseJson(body.toString("utf8")) });
}

/** Why a good status came without anything that was sampled. */
function unanswered({ choices, engineError }: CaptureResult): string | undefined {
  if (choices.length > 0) return undefined;
  return engineError === null ? "answer-without-choice" : "engine-error";
}

function untrainable(
  engine: Engine,
  plan: PlannedCall,
  requiresCanary: boolean,
): string | undefined {
  if (!plan.captured) return "not-captured";
  if (engine.canary?.isConclusive === true) {
    return engine.canary.problem === undefined ? undefined : "canary-failed";
  }
  return requiresCanary ? "canary-pending" : undefined;
}
