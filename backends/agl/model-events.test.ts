import { describe, expect, it } from "vitest";
import type { Call } from "../../core/call.ts";
import type { PortEvent, PortRequest } from "./agl-port.ts";
import { rawEvents, tripletEvents } from "./model-events.ts";

const target = { rolloutId: "r", attemptId: "r.1" };
const options = { includeSideCalls: false };

function call(requestId: string, over: Partial<Call> = {}): Call {
  const responseIds = over.responseIds === undefined ? Int32Array.of(7, 8) : over.responseIds;
  return {
    callId: `${requestId}.${over.choiceIndex ?? 0}`,
    rolloutId: "r",
    attemptId: "r.1",
    requestId,
    choiceIndex: 0,
    promptIds: Int32Array.of(1, 2, 3),
    responseIds,
    logprobs: responseIds && Float32Array.from(responseIds, () => -0.5),
    policyVersion: 4,
    startedAt: 1000,
    finishedAt: 1100,
    delivered: true,
    complete: true,
    finishReason: "stop",
    usage: null,
    ...over,
  };
}

function request(calls: readonly Call[], over: Partial<PortRequest> = {}): PortRequest {
  const [first] = calls;
  return {
    calls,
    requestId: first?.requestId ?? "q0",
    model: "policy",
    engine: "http://e/v1",
    policyVersion: 4,
    httpStatus: 200,
    errorReason: "",
    delivered: first?.delivered ?? true,
    receivedAtMs: first?.startedAt ?? 1000,
    finishedAfterMs: 100,
    usage: { promptTokens: 3, completionTokens: 2 },
    requestText: null,
    responseText: null,
    ...over,
  };
}

const reward = (atMs: number, data: object): PortEvent => ({
  eventId: String(atMs),
  ...target,
  eventType: "reward",
  dataJson: JSON.stringify(data),
  atMs,
});

const responses = (requests: readonly PortRequest[], over = options) =>
  tripletEvents(target, requests, [], over).map(({ data }) => data["response_token_ids"]);

describe("tripletEvents", () => {
  it("gives ids, logprobs and the version that sampled", () => {
    expect(tripletEvents(target, [request([call("q1")])], [], options)).toEqual([
      {
        event_type: "model_request",
        rollout_id: "r",
        attempt_id: "r.1",
        timestamp: 1.1,
        data: {
          prompt_token_ids: [1, 2, 3],
          response_token_ids: [7, 8],
          response_log_probs: [-0.5, -0.5],
          server: { model: "policy", version: 4 },
          http_status: 200,
          status: "ok",
        },
      },
    ]);
  });

  it("keeps every choice of n > 1 and every one of equal parallel calls", () => {
    const choices = [0, 1, 2].map((choiceIndex) =>
      call("q1", { choiceIndex, responseIds: Int32Array.of(choiceIndex) }),
    );
    const parallel = [request([call("q2")]), request([call("q3")])];
    expect(responses([request(choices), ...parallel])).toEqual([[0], [1], [2], [7, 8], [7, 8]]);
  });

  it("hides an undelivered duplicate, unless a later prompt goes on from it", () => {
    const lost = request([call("q1", { delivered: false, responseIds: Int32Array.of(5) })]);
    const again = request([call("q2", { startedAt: 2000 })]);
    expect(responses([lost, again])).toEqual([[7, 8]]);
    const goesOn = request([
      call("q3", { startedAt: 3000, promptIds: Int32Array.of(1, 2, 3, 5, 9) }),
    ]);
    expect(responses([lost, again, goesOn])).toEqual([[5], [7, 8], [7, 8]]);
  });

  it("shows a replayed answer once, and what a marked retry replaced not at all", () => {
    const first = request([call("q1", { delivered: false })]);
    const replay = request([call("q2", { retryOf: "q1", startedAt: 2000 })]);
    expect(responses([first, replay])).toEqual([[7, 8]]);
    const other = request([
      call("q2", { retryOf: "q1", startedAt: 2000, responseIds: Int32Array.of(9) }),
    ]);
    expect(responses([request([call("q1")]), other])).toEqual([[9]]);
  });

  it("side calls are shown only when the experiment trains them", () => {
    const requests = [request([call("q1", { sideCall: true })])];
    expect(responses(requests)).toEqual([]);
    expect(responses(requests, { includeSideCalls: true })).toEqual([[7, 8]]);
  });

  it("an incomplete sampling and a failed call are errors without ids", () => {
    const broken = call("q1", { complete: false, incompleteReason: "usage-mismatch" });
    const failed = request([], {
      requestId: "q2",
      httpStatus: 500,
      errorReason: "engine-status-500",
    });
    const shown = tripletEvents(target, [request([broken]), failed], [], options);
    expect(shown.map(({ data }) => [data["status"], data["response_token_ids"]])).toEqual([
      ["error", []],
      ["error", []],
    ]);
    expect(shown[0]?.data["error"]).toMatchObject({ code: "usage-mismatch" });
    expect(shown[1]?.data["error"]).toMatchObject({ code: "engine-status-500" });
  });

  it("trims rewards and keeps the order of time", () => {
    const late = request([call("q2", { startedAt: 3000 })], { receivedAtMs: 3000 });
    const shown = tripletEvents(
      target,
      [request([call("q1")]), late],
      [reward(2000, { value: 1, source: "agent", message: "long" }), reward(4000, {})],
      options,
    );
    expect(shown.map(({ event_type: type }) => type)).toEqual([
      "model_request",
      "reward",
      "model_request",
      "reward",
    ]);
    expect(shown[1]?.data).toEqual({ value: 1, source: "agent" });
    expect(shown[3]?.data).toEqual({ value: null });
  });
});

describe("rawEvents", () => {
  it("joins the captured text with ids and logprobs, by the choice's index", () => {
    const choices = [0, 1].map((choiceIndex) => call("q1", { choiceIndex }));
    const responseText = JSON.stringify({
      id: "x",
      choices: [
        { index: 1, message: { content: "b" } },
        { index: 0, message: { content: "a" } },
      ],
    });
    const requestText = JSON.stringify({ messages: [{ role: "user", content: "hi" }] });
    const [event] = rawEvents(target, [request(choices, { requestText, responseText })], []);
    expect(event?.data).toMatchObject({
      request: { messages: [{ content: "hi" }] },
      response: {
        id: "x",
        prompt_token_ids: [1, 2, 3],
        usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
        choices: [
          { index: 0, message: { content: "a" }, token_ids: [7, 8] },
          { index: 1, message: { content: "b" }, token_ids: [7, 8] },
        ],
      },
      server: { model: "policy", endpoint: "http://e/v1", version: 4 },
      latency_ms: 100,
      status: "ok",
      finish_reason: "stop",
    });
  });

  it("needs no text, and gives JSON whatever the logprobs are", () => {
    const nan = call("q1", { logprobs: Float32Array.of(Number.NaN, -1), complete: false });
    const [event] = rawEvents(target, [request([nan], { requestText: "{cut" })], []);
    expect(event?.data["request"]).toEqual({});
    expect(JSON.parse(JSON.stringify(event?.data["response"]))).toMatchObject({
      choices: [{ logprobs: { content: [{ logprob: null }, { logprob: -1 }] } }],
    });
  });

  it("shows what failed and what was not delivered", () => {
    const failed = request([], { errorReason: "engine-status-500", httpStatus: 500 });
    const lost = request([call("q2", { delivered: false })]);
    const [first, second] = rawEvents(target, [failed, lost], []);
    expect(first?.data).toMatchObject({ status: "error", http_status: 500 });
    expect(second?.data).toMatchObject({ status: "ok", delivered: false });
  });
});
