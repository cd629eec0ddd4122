import { seededRandom } from "../core/assembly/testing/random.ts";
import type { FinishedCall } from "../sidecar/capture/finished-call.ts";
import { connectRequestBytes } from "../sidecar/uplink/connect-request-bytes.ts";
import { recordBytes } from "../sidecar/uplink/record-bytes.ts";
import { createRecordEncoder } from "../sidecar/uplink/record-encoder.ts";

const vocabulary = 151_936;

/** Ids by rank as in text (density 1/rank), or uniform over the vocabulary: the worst case. */
const idSources = {
  text: (random: () => number) => Math.floor(vocabulary ** random()),
  uniform: (random: () => number) => Math.floor(random() * vocabulary),
} as const;

/** Logprobs with as many random bits as a float has, or those of a softmax over random logits. */
const logprobSources = {
  random: (random: () => number) => Math.log(1 - random()),
  engine: engineLogprob,
} as const;

export interface TrajectoryShape {
  readonly turns: number;
  readonly finalTokens: number;
  /** Part of what a turn adds that the policy sampled. */
  readonly sampledShare: number;
  readonly ids: keyof typeof idSources;
  readonly logprobs: keyof typeof logprobSources;
}

/** The calls of a trajectory, with ids and names of the lengths that real ones have. */
export function wireTrajectory(shape: TrajectoryShape): FinishedCall[] {
  const random = seededRandom(17).next;
  const draw = (count: number): number[] =>
    Array.from({ length: count }, () => idSources[shape.ids](random));
  const perTurn = shape.finalTokens / shape.turns;
  const sampled = Math.round(perTurn * shape.sampledShare);
  const calls: FinishedCall[] = [];
  let context: number[] = [];
  for (let turn = 0; turn < shape.turns; turn += 1) {
    const added = Math.round(perTurn * (turn + 1)) - context.length - sampled;
    const prompt = [...context, ...draw(added)];
    const response = draw(sampled);
    const logprobs = response.map(() => logprobSources[shape.logprobs](random));
    calls.push(wireCall(turn, prompt, response, logprobs, random));
    context = [...prompt, ...response];
  }
  return calls;
}

function wireCall(
  turn: number,
  prompt: readonly number[],
  response: readonly number[],
  logprobs: readonly number[],
  random: () => number,
): FinishedCall {
  const requestId = `call_6f9619ff8b86d011${(turn + 4711).toString(16).padStart(8, "0")}`;
  const startedAt = 1_767_225_600_000 + turn * 5000 + random();
  return {
    requestId,
    rolloutId: "rollout-train-000123-07",
    attemptId: "rollout-train-000123-07.1",
    dialect: "chat",
    streamMode: "relayed",
    model: "Qwen/Qwen3-8B",
    policyVersion: 12,
    promptIds: Int32Array.from(prompt),
    choices: [
      {
        callId: `${requestId}.0`,
        index: 0,
        responseIds: Int32Array.from(response),
        logprobs: Float32Array.from(logprobs),
        finishReason: "tool_calls",
        stopReason: null,
        policyVersions: [{ version: 12, start: 0, end: response.length }],
        complete: true,
      },
    ],
    usage: { promptTokens: prompt.length, completionTokens: response.length },
    delivered: true,
    httpStatus: 200,
    timing: {
      receivedAtMs: startedAt,
      sentAtMs: startedAt + random(),
      firstByteAtMs: startedAt + 100 * random(),
      finishedAtMs: startedAt + 4000 * random() + 200,
      heldMs: 0,
    },
    droppedRequestParts: [],
    sessionId: "0199a6c0-4f5e-7c1a-9a51-3a1d5f0e7b11",
    engine: "http://10.0.3.17:8000/v1",
    samplingJson: '{"temperature":1,"top_p":1,"max_tokens":4096}',
  };
}

/** Of a token sampled from the softmax of 64 normal logits, in the float32 steps of an engine. */
function engineLogprob(random: () => number): number {
  const logits = Float32Array.from({ length: 64 }, () => 12 + 3 * normal(random));
  const top = Math.max(...logits);
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - top), 0);
  const draw = random() * sum;
  let below = 0;
  const sampled = logits.find((logit) => (below += Math.exp(logit - top)) > draw) ?? top;
  return Math.fround(Math.fround(sampled - top) - Math.fround(Math.log(Math.fround(sum))));
}

function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

/** The records of calls as they lie in the spool. */
export function encodeAll(calls: readonly FinishedCall[]): Buffer[] {
  const encoder = createRecordEncoder();
  return calls.map((call, i) => {
    const { record, remember } = encoder.encode(call, {});
    const bytes = recordBytes(i + 1, record);
    remember();
    return bytes;
  });
}

/** Bytes of records on the wire. */
export function wireBytes(records: readonly Buffer[]): number {
  return records.reduce(
    (sum, r) => sum + framedBytes(connectRequestBytes({ recordBytes: r }).length),
    0,
  );
}

/** gRPC puts 5 bytes before a message, HTTP/2 9 before each DATA frame of at most 16 KiB. */
export function framedBytes(message: number): number {
  return message + 5 + 9 * Math.ceil((message + 5) / 16_384);
}
