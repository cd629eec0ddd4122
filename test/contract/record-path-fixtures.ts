import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fromBinary } from "@bufbuild/protobuf";
import { pino } from "pino";
import { seededRandom } from "../../core/assembly/testing/random.ts";
import type { CallRecord } from "../../proto/gen/outrigger/v1/record_pb.ts";
import { RecordSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Logger } from "../../runtime/log.ts";
import { restoreIds } from "../../runtime/records/restore-ids.ts";
import type { FinishedCall, FinishedChoice } from "../../sidecar/capture/finished-call.ts";
import { recordBytes, type WireCall } from "../../sidecar/uplink/record-bytes.ts";

export const silentLog: Logger = pino({ level: "silent" });

/** A record of a call as the controller reads it. */
export function readCall(record: Uint8Array): CallRecord {
  const { body } = fromBinary(RecordSchema, record);
  if (body.case !== "call") throw new Error("the record holds no call");
  restoreIds(body.value);
  return body.value;
}

/** An encoded call as the controller receives it. */
export function receivedCall(seq: number, record: WireCall): CallRecord {
  return readCall(recordBytes(seq, record));
}

/** A fresh directory and the function that removes it. */
export function temporaryDirectory(name: string): { path: string; remove: () => void } {
  const path = mkdtempSync(join(tmpdir(), `outrigger-${name}-`));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

/** A complete choice with made-up logprobs. */
export function choiceOf(
  requestId: string,
  responseIds: ArrayLike<number> | null,
  overrides: Partial<FinishedChoice> = {},
): FinishedChoice {
  const ids = responseIds === null ? null : Int32Array.from(responseIds);
  const index = overrides.index ?? 0;
  return {
    callId: `${requestId}.${index}`,
    index,
    responseIds: ids,
    logprobs: ids === null ? null : Float32Array.from(ids, (id) => -((id % 97) + 1) / 41),
    finishReason: "stop",
    stopReason: null,
    policyVersions: ids === null ? [] : [{ version: 3, start: 0, end: ids.length }],
    complete: ids !== null,
    ...(ids === null && { incompleteReason: "ids-missing" }),
    ...overrides,
  };
}

/** A delivered call of rollout r1, attempt r1-0. */
export function finishedCall(
  requestId: string,
  promptIds: ArrayLike<number> | null,
  responseIds: ArrayLike<number> | null,
  overrides: Partial<FinishedCall> = {},
): FinishedCall {
  const prompt = promptIds === null ? null : Int32Array.from(promptIds);
  return {
    requestId,
    rolloutId: "r1",
    attemptId: "r1-0",
    dialect: "chat",
    streamMode: "relayed",
    model: "policy",
    policyVersion: 3,
    promptIds: prompt,
    choices: [choiceOf(requestId, responseIds)],
    usage: { promptTokens: prompt?.length ?? 0, completionTokens: responseIds?.length ?? 0 },
    delivered: true,
    httpStatus: 200,
    timing: {
      receivedAtMs: 1_767_225_600_000.25,
      sentAtMs: 1_767_225_600_001,
      firstByteAtMs: 1_767_225_600_101.5,
      finishedAtMs: 1_767_225_600_900,
      heldMs: 0,
    },
    droppedRequestParts: [],
    samplingJson: '{"temperature":1}',
    ...overrides,
  };
}

/** Calls of one attempt of `trajectoryCall`. */
export const trajectoryTurns = 20;

/**
 * Call number `n` of a stream of made-up attempts with `trajectoryTurns` turns each: every prompt
 * goes on from the response before it. The same for the same name and number, in any process.
 */
export function trajectoryCall(name: string, n: number): FinishedCall {
  const attempt = Math.floor(n / trajectoryTurns);
  const random = seededRandom(attempt * 31 + 7).next;
  const draw = (count: number): number[] =>
    Array.from({ length: count }, () => Math.floor(random() * 150_000));
  let prompt = draw(100);
  let response = draw(10);
  for (let turn = 0; turn < n % trajectoryTurns; turn += 1) {
    prompt = [...prompt, ...response, ...draw(20)];
    response = draw(10);
  }
  return finishedCall(`${name}-${n}`, prompt, response, {
    rolloutId: `${name}-r${attempt}`,
    attemptId: `${name}-r${attempt}-0`,
  });
}
