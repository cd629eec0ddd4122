import { canonicalCalls } from "../../core/assembly/canonical-calls.ts";
import { groupSamplings } from "../../core/assembly/group-samplings.ts";
import { selectSamplings } from "../../core/assembly/select-samplings.ts";
import { traceCalls } from "../../core/assembly/trace-calls.ts";
import type { Call } from "../../core/call.ts";
import type { PortEvent, PortRequest } from "./agl-port.ts";

/** An event of the wire; `timestamp` in seconds. */
export interface AglEvent {
  readonly event_type: string;
  readonly rollout_id: string;
  readonly attempt_id: string;
  readonly timestamp: number;
  readonly data: Readonly<Record<string, unknown>>;
}

interface Target {
  readonly rolloutId: string;
  readonly attemptId: string;
}

/** One `model_request` per request, and the posted events, in order of time. */
export function rawEvents(
  target: Target,
  requests: readonly PortRequest[],
  events: readonly PortEvent[],
): AglEvent[] {
  return inOrder([
    ...requests.map((request) => modelRequest(target, request, rawData(request))),
    ...events.map(postedEvent),
  ]);
}

/**
 * What a trainer reads: one `model_request` per sampling that may be trained, so n > 1 and parallel
 * calls keep every choice, while an answer that was never delivered, or that a marked retry
 * replaced, is hidden unless a later prompt goes on from it. A sampling that is incomplete is shown
 * as an error without ids: a reader that skips errors never trains on it.
 */
export function tripletEvents(
  target: Target,
  requests: readonly PortRequest[],
  events: readonly PortEvent[],
  options: { readonly includeSideCalls: boolean },
): AglEvent[] {
  const byId = new Map(requests.map((request) => [request.requestId, request]));
  const { calls } = canonicalCalls(requests.flatMap((request) => request.calls));
  const traced = traceCalls(calls);
  const shown: AglEvent[] = [];
  for (const { sampling, verdict } of selectSamplings(traced, groupSamplings(traced), options)) {
    const call = traced[sampling.index]?.call as Call;
    const request = byId.get(call.requestId) as PortRequest;
    if (verdict === "train") {
      shown.push(modelRequest(target, request, tripletData(request, call)));
    } else if (verdict === "incomplete") {
      const fitness = traced[sampling.index]?.fitness;
      const reason = fitness !== undefined && "reason" in fitness ? fitness.reason : "incomplete";
      shown.push(modelRequest(target, request, failedData(request, reason)));
    }
  }
  for (const request of requests) {
    if (request.calls.length === 0) {
      const reason = request.errorReason || "no-choice";
      shown.push(modelRequest(target, request, failedData(request, reason)));
    }
  }
  return inOrder([...shown, ...events.map(postedEvent).map(trimReward)]);
}

function modelRequest(
  { rolloutId, attemptId }: Target,
  request: PortRequest,
  data: Readonly<Record<string, unknown>>,
): AglEvent {
  return {
    event_type: "model_request",
    rollout_id: rolloutId,
    attempt_id: attemptId,
    timestamp: (request.receivedAtMs + request.finishedAfterMs) / 1000,
    data,
  };
}

function tripletData(request: PortRequest, call: Call): Readonly<Record<string, unknown>> {
  return {
    prompt_token_ids: Array.from(call.promptIds ?? []),
    response_token_ids: Array.from(call.responseIds ?? []),
    response_log_probs: call.logprobs === null ? null : Array.from(call.logprobs),
    server: { model: request.model, version: call.policyVersion },
    http_status: request.httpStatus,
    status: "ok",
  };
}

function failedData(request: PortRequest, reason: string): Readonly<Record<string, unknown>> {
  return {
    prompt_token_ids: [],
    response_token_ids: [],
    response_log_probs: null,
    server: { model: request.model, version: request.policyVersion },
    http_status: request.httpStatus,
    status: "error",
    error: { code: reason, message: `not for training: ${reason}` },
  };
}

function rawData(request: PortRequest): Readonly<Record<string, unknown>> {
  const { model, engine, policyVersion, usage } = request;
  const isOk = request.errorReason === "" && request.httpStatus < 400;
  return {
    model,
    model_version: policyVersion,
    request: objectOf(request.requestText) ?? {},
    response: rawResponse(request),
    server: { model, endpoint: engine, version: policyVersion },
    latency_ms: request.finishedAfterMs,
    http_status: request.httpStatus,
    status: isOk ? "ok" : "error",
    retry_count: 0,
    usage: usage === null ? null : usageOf(usage),
    finish_reason: request.calls[0]?.finishReason ?? null,
    delivered: request.delivered,
    request_id: request.requestId,
  };
}

/** The captured text, with the ids and logprobs where an engine that returns ids has them. */
function rawResponse(request: PortRequest): Readonly<Record<string, unknown>> {
  const text = objectOf(request.responseText) ?? {};
  const texts = new Map<unknown, Record<string, unknown>>();
  for (const choice of Array.isArray(text["choices"]) ? text["choices"] : []) {
    if (isObject(choice)) texts.set(choice["index"], choice);
  }
  const promptIds = request.calls.find((call) => call.promptIds !== null)?.promptIds;
  return {
    ...text,
    ...(promptIds != null && { prompt_token_ids: Array.from(promptIds) }),
    ...(request.usage !== null && { usage: usageOf(request.usage) }),
    ...(request.errorReason !== "" && {
      error: text["error"] ?? { code: request.errorReason },
    }),
    choices: request.calls.map((call) => ({
      finish_reason: call.finishReason,
      ...texts.get(call.choiceIndex),
      index: call.choiceIndex,
      ...(call.responseIds !== null && { token_ids: Array.from(call.responseIds) }),
      ...(call.logprobs !== null && {
        logprobs: {
          content: Array.from(call.logprobs, (logprob) => ({ logprob: jsonNumber(logprob) })),
        },
      }),
    })),
  };
}

function jsonNumber(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

function usageOf(usage: { readonly promptTokens: number; readonly completionTokens: number }) {
  const { promptTokens, completionTokens } = usage;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
  };
}

/** The wire's form of an event that was posted. */
export function postedEvent(event: PortEvent): AglEvent {
  return {
    event_type: event.eventType,
    rollout_id: event.rolloutId,
    attempt_id: event.attemptId,
    timestamp: event.atMs / 1000,
    data: objectOf(event.dataJson) ?? {},
  };
}

function trimReward(event: AglEvent): AglEvent {
  if (event.event_type !== "reward") return event;
  const { value = null, source, reason } = event.data;
  return {
    ...event,
    data: {
      value,
      ...(source !== undefined && { source }),
      ...(reason !== undefined && { reason }),
    },
  };
}

/** Stable: events of one instant stay in order of arrival. */
function inOrder(events: readonly AglEvent[]): AglEvent[] {
  return [...events].sort((a, b) => a.timestamp - b.timestamp);
}

function objectOf(text: string | null): Record<string, unknown> | undefined {
  if (text === null) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    // Redacted or cut text that is no JSON any more.
    return undefined;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
