import { create, type DescMessage, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import type { Generated, Insertable } from "kysely";
import {
  type CallRecord,
  CallRecordSchema,
  TextBodySchema,
} from "../../proto/gen/outrigger/v1/record_pb.ts";

export type RequestOutcome = "delivered" | "undelivered" | "failed";

/** Columns of the call store; `record` is a CallRecord without its texts. */
export type CallTables = {
  store_identity: { store_id: string };
  spool: { spool_id: string; acked_seq: number };
  request: {
    ordinal: Generated<number>;
    request_id: string;
    rollout_id: string;
    attempt_id: string;
    received_at_ms: number;
    outcome: RequestOutcome;
    /** Choices with complete ids. */
    complete_count: number;
    /** JSON array of the reasons of the other choices. */
    incomplete_reasons: string;
    record: Uint8Array;
    request_text: Uint8Array | null;
    response_text: Uint8Array | null;
  };
  event: {
    ordinal: Generated<number>;
    event_id: string;
    rollout_id: string;
    attempt_id: string;
    event_type: string;
    data_json: string;
    at_ms: number;
  };
};

export type RequestRow = Insertable<CallTables["request"]>;
export type EventRow = Insertable<CallTables["event"]>;
/** The row of a request, and the request that its prompt refers to ("" for none). */
export interface NewRequest {
  readonly row: RequestRow;
  readonly base: string;
}

export function requestRow(call: CallRecord): NewRequest {
  const { requestText, responseText, ...rest } = call;
  const incomplete = call.choices.filter((choice) => !choice.complete);
  const row = {
    request_id: call.requestId,
    rollout_id: call.rolloutId,
    attempt_id: call.attemptId,
    received_at_ms: call.timing?.receivedAtMs ?? 0,
    outcome: outcomeOf(call),
    complete_count: call.choices.length - incomplete.length,
    incomplete_reasons: JSON.stringify(
      incomplete.map((choice) => choice.incompleteReason || "unspecified"),
    ),
    record: bytesOf(CallRecordSchema, rest),
    request_text: requestText === undefined ? null : bytesOf(TextBodySchema, requestText),
    response_text: responseText === undefined ? null : bytesOf(TextBodySchema, responseText),
  };
  return { row, base: call.prompt?.baseRequestId ?? "" };
}

function outcomeOf(call: CallRecord): RequestOutcome {
  if (call.errorReason !== "") return "failed";
  return call.delivered ? "delivered" : "undelivered";
}

export function eventRow(event: {
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}): EventRow {
  return {
    event_id: event.eventId,
    rollout_id: event.rolloutId,
    attempt_id: event.attemptId,
    event_type: event.eventType,
    data_json: event.dataJson,
    at_ms: event.atMs,
  };
}

function bytesOf<D extends DescMessage>(schema: D, value: MessageInitShape<D>): Uint8Array {
  return Buffer.from(toBinary(schema, create(schema, value)));
}
