import { fromBinary } from "@bufbuild/protobuf";
import type { Kysely, Transaction } from "kysely";
import type { Call } from "../../core/call.ts";
import {
  type CallRecord,
  CallRecordSchema,
  type TextBody,
  TextBodySchema,
} from "../../proto/gen/outrigger/v1/record_pb.ts";
import type { Record as SpooledRecord } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import {
  type CallTables,
  type EventRow,
  eventRow,
  type NewRequest,
  type RequestOutcome,
  type RequestRow,
  requestRow,
} from "./call-tables.ts";
import { type ExpandedRequest, expandCalls } from "./expand-calls.ts";
import { expandText } from "./expand-text.ts";
import type { Database } from "./open-database.ts";

/** A record as it came off a sidecar's spool. */
export interface ReceivedRecord {
  readonly spoolId: string;
  readonly record: SpooledRecord;
}

export interface StoredEvent {
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}

/** What was new in a batch; ids that the store had already are counted in `duplicates`. */
export interface AppendResult {
  readonly newRequestIds: readonly string[];
  readonly newEventIds: readonly string[];
  readonly duplicates: number;
}

/** Requests by how they ended; `delivered`, `undelivered` and `failed` exclude each other. */
export interface CallCounts {
  /** Requests with a record. */
  readonly requests: number;
  readonly delivered: number;
  readonly undelivered: number;
  /** The engine gave no usable answer. */
  readonly failed: number;
  /** Choices with complete token ids and logprobs. */
  readonly completeCalls: number;
  /** Choices that are not, by reason. */
  readonly incompleteCalls: Readonly<Record<string, number>>;
}

/** A request that an engine was sent, without its tokens. Times in ms since the epoch. */
export interface SentRequest {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly sentAtMs: number;
  readonly finishedAtMs: number;
  /** Policy version of the first token; where the engine does not say, the one it was sent to. */
  readonly version: number;
  /** The whole answer reached the harness. */
  readonly isDelivered: boolean;
}

export interface CallStore {
  /** Differs for every database file. */
  readonly storeId: string;
  /** One transaction for the whole batch; idempotent by request and event id. */
  appendRecords(batch: readonly ReceivedRecord[]): Promise<AppendResult>;
  /** Events that did not come through a sidecar; idempotent by event id. */
  appendEvents(events: readonly StoredEvent[]): Promise<AppendResult>;
  /** In order of arrival, one per choice, token ids in full. */
  callsOfAttempt(rolloutId: string, attemptId: string): Promise<Call[]>;
  /** The same with the record and its settings, one per request. */
  requestsOfAttempt(rolloutId: string, attemptId: string): Promise<ExpandedRequest[]>;
  eventsOfAttempt(rolloutId: string, attemptId: string): Promise<StoredEvent[]>;
  /** Attempts with a call or an event, by the time of their first one. */
  attemptsWithRecords(rolloutId: string): Promise<string[]>;
  /** Forgets the calls and events of a rollout for good. */
  removeRollout(rolloutId: string): Promise<void>;
  /** Every request that an engine was sent, in order of arrival here; repeated answers are none. */
  sentRequests(): Promise<SentRequest[]>;
  /** Of one rollout, or of all. */
  callCounts(rolloutId?: string): Promise<CallCounts>;
  /** Redacted bodies; null where text was not captured, undefined for an unknown request. */
  textOfRequest(
    requestId: string,
  ): Promise<{ readonly request: string | null; readonly response: string | null } | undefined>;
  /** Highest sequence number stored of a spool; 0 for none. */
  ackedSeq(spoolId: string): Promise<number>;
}

type Tables = Kysely<CallTables>;

/** Rows per statement; SQLite takes 32,766 parameters. */
const rowsPerInsert = 100;
/** Records in memory at once while all are read. */
const rowsPerPage = 500;

/** `database` must have had `callStoreMigrations`. */
export async function openCallStore(database: Database): Promise<CallStore> {
  const tables: Tables = database.withTables<CallTables>();
  const identity = await tables.selectFrom("store_identity").select("store_id").executeTakeFirst();
  if (identity === undefined) throw new Error("the call store has no identity: was it migrated?");
  return {
    storeId: identity.store_id,
    appendRecords: (batch) => appendRecords(tables, batch),
    appendEvents: (events) =>
      tables.transaction().execute(async (tx) => {
        const newEventIds = await insertEvents(tx, events.map(eventRow));
        return { newRequestIds: [], newEventIds, duplicates: events.length - newEventIds.length };
      }),
    callsOfAttempt: async (rolloutId, attemptId) =>
      expandCalls(await recordsOfAttempt(tables, rolloutId, attemptId)).flatMap((r) => r.calls),
    requestsOfAttempt: async (rolloutId, attemptId) =>
      expandCalls(await recordsOfAttempt(tables, rolloutId, attemptId)),
    eventsOfAttempt: (rolloutId, attemptId) => eventsOfAttempt(tables, rolloutId, attemptId),
    attemptsWithRecords: (rolloutId) => attemptsWithRecords(tables, rolloutId),
    removeRollout: (rolloutId) =>
      tables.transaction().execute(async (tx) => {
        await tx.deleteFrom("request").where("rollout_id", "=", rolloutId).execute();
        await tx.deleteFrom("event").where("rollout_id", "=", rolloutId).execute();
      }),
    sentRequests: () => sentRequests(tables),
    callCounts: (rolloutId) => callCounts(tables, rolloutId),
    textOfRequest: (requestId) => textOfRequest(tables, requestId),
    ackedSeq: async (spoolId) => {
      const spool = tables.selectFrom("spool").select("acked_seq").where("spool_id", "=", spoolId);
      return (await spool.executeTakeFirst())?.acked_seq ?? 0;
    },
  };
}

async function appendRecords(
  tables: Tables,
  batch: readonly ReceivedRecord[],
): Promise<AppendResult> {
  const requests: NewRequest[] = [];
  const events: EventRow[] = [];
  const lastSeqs = new Map<string, number>();
  for (const { spoolId, record } of batch) {
    lastSeqs.set(spoolId, Math.max(lastSeqs.get(spoolId) ?? 0, Number(record.seq)));
    if (record.body.case === "call") requests.push(requestRow(record.body.value));
    else if (record.body.case === "event") events.push(eventRow(record.body.value));
  }
  return tables.transaction().execute(async (tx) => {
    await markMissingBases(tx, requests);
    const newRequestIds = await insertRequests(
      tx,
      requests.map(({ row }) => row),
    );
    const newEventIds = await insertEvents(tx, events);
    for (const [spool_id, acked_seq] of lastSeqs) {
      await tx
        .insertInto("spool")
        .values({ spool_id, acked_seq })
        .onConflict((c) =>
          c.column("spool_id").doUpdateSet({ acked_seq }).where("spool.acked_seq", "<", acked_seq),
        )
        .execute();
    }
    const added = newRequestIds.length + newEventIds.length;
    return { newRequestIds, newEventIds, duplicates: requests.length + events.length - added };
  });
}

/** A record whose base the store lacks has no ids: counted as such from the start. */
async function markMissingBases(
  tx: Transaction<CallTables>,
  requests: readonly NewRequest[],
): Promise<void> {
  const known = new Set(requests.map(({ row }) => row.request_id));
  const asked = [...new Set(requests.map(({ base }) => base))].filter(
    (base) => base !== "" && !known.has(base),
  );
  for (let at = 0; at < asked.length; at += 1000) {
    const ids = asked.slice(at, at + 1000);
    const found = await tx
      .selectFrom("request")
      .select("request_id")
      .where("request_id", "in", ids)
      .execute();
    for (const { request_id } of found) known.add(request_id);
  }
  for (const { row, base } of requests) {
    if (base === "" || known.has(base)) continue;
    const missing = Array.from<string>({ length: row.complete_count }).fill("base-missing");
    row.incomplete_reasons = JSON.stringify([
      ...(JSON.parse(row.incomplete_reasons) as string[]),
      ...missing,
    ]);
    row.complete_count = 0;
  }
}

async function insertRequests(
  tx: Transaction<CallTables>,
  rows: readonly RequestRow[],
): Promise<string[]> {
  const added: string[] = [];
  for (let at = 0; at < rows.length; at += rowsPerInsert) {
    const inserted = await tx
      .insertInto("request")
      .values(rows.slice(at, at + rowsPerInsert))
      .onConflict((c) => c.column("request_id").doNothing())
      .returning("request_id")
      .execute();
    for (const row of inserted) added.push(row.request_id);
  }
  return added;
}

async function insertEvents(
  tx: Transaction<CallTables>,
  rows: readonly EventRow[],
): Promise<string[]> {
  const added: string[] = [];
  for (let at = 0; at < rows.length; at += rowsPerInsert) {
    const inserted = await tx
      .insertInto("event")
      .values(rows.slice(at, at + rowsPerInsert))
      .onConflict((c) => c.column("event_id").doNothing())
      .returning("event_id")
      .execute();
    for (const row of inserted) added.push(row.event_id);
  }
  return added;
}

async function recordsOfAttempt(
  tables: Tables,
  rolloutId: string,
  attemptId: string,
): Promise<CallRecord[]> {
  const rows = await tables
    .selectFrom("request")
    .select("record")
    .where("rollout_id", "=", rolloutId)
    .where("attempt_id", "=", attemptId)
    .orderBy("ordinal")
    .execute();
  return rows.map((row) => fromBinary(CallRecordSchema, row.record));
}

async function eventsOfAttempt(
  tables: Tables,
  rolloutId: string,
  attemptId: string,
): Promise<StoredEvent[]> {
  const rows = await tables
    .selectFrom("event")
    .selectAll()
    .where("rollout_id", "=", rolloutId)
    .where("attempt_id", "=", attemptId)
    .orderBy("ordinal")
    .execute();
  return rows.map((row) => ({
    eventId: row.event_id,
    rolloutId: row.rollout_id,
    attemptId: row.attempt_id,
    eventType: row.event_type,
    dataJson: row.data_json,
    atMs: row.at_ms,
  }));
}

async function attemptsWithRecords(tables: Tables, rolloutId: string): Promise<string[]> {
  const calls = await tables
    .selectFrom("request")
    .select(["attempt_id", ({ fn }) => fn.min<number>("received_at_ms").as("first_ms")])
    .where("rollout_id", "=", rolloutId)
    .groupBy("attempt_id")
    .execute();
  const events = await tables
    .selectFrom("event")
    .select(["attempt_id", ({ fn }) => fn.min<number>("at_ms").as("first_ms")])
    .where("rollout_id", "=", rolloutId)
    .groupBy("attempt_id")
    .execute();
  const inOrder = [...calls, ...events].sort((a, b) => Number(a.first_ms) - Number(b.first_ms));
  return [...new Set(inOrder.map((row) => row.attempt_id))];
}

async function sentRequests(tables: Tables): Promise<SentRequest[]> {
  const sent: SentRequest[] = [];
  for (let after = 0; ; ) {
    const rows = await tables
      .selectFrom("request")
      .select(["ordinal", "outcome", "record"])
      .where("ordinal", ">", after)
      .orderBy("ordinal")
      .limit(rowsPerPage)
      .execute();
    for (const row of rows) {
      after = Number(row.ordinal);
      const call = fromBinary(CallRecordSchema, row.record);
      const { receivedAtMs, sentAfterUs, finishedAfterUs } = call.timing ?? {};
      if (receivedAtMs === undefined || sentAfterUs === undefined || call.replayOf !== "") continue;
      const first = call.choices.flatMap(({ policyVersions: [span] }) => span?.version ?? []);
      sent.push({
        rolloutId: call.rolloutId,
        attemptId: call.attemptId,
        sentAtMs: receivedAtMs + Number(sentAfterUs) / 1000,
        finishedAtMs: receivedAtMs + Number(finishedAfterUs ?? 0n) / 1000,
        version: Math.min(...(first.length === 0 ? [call.policyVersion] : first).map(Number)),
        isDelivered: row.outcome === "delivered",
      });
    }
    if (rows.length < rowsPerPage) return sent;
  }
}

async function callCounts(tables: Tables, rolloutId: string | undefined): Promise<CallCounts> {
  let query = tables
    .selectFrom("request")
    .select(["outcome", "incomplete_reasons"])
    .select((e) => [
      e.fn.countAll<number>().as("requests"),
      e.fn.sum<number>("complete_count").as("complete"),
    ])
    .groupBy(["outcome", "incomplete_reasons"]);
  if (rolloutId !== undefined) query = query.where("rollout_id", "=", rolloutId);
  const byOutcome: Record<RequestOutcome, number> = { delivered: 0, undelivered: 0, failed: 0 };
  const incompleteCalls: Record<string, number> = {};
  let completeCalls = 0;
  for (const row of await query.execute()) {
    const requests = Number(row.requests);
    byOutcome[row.outcome] += requests;
    completeCalls += Number(row.complete);
    for (const reason of JSON.parse(row.incomplete_reasons) as string[])
      incompleteCalls[reason] = (incompleteCalls[reason] ?? 0) + requests;
  }
  const requests = byOutcome.delivered + byOutcome.undelivered + byOutcome.failed;
  return { requests, ...byOutcome, completeCalls, incompleteCalls };
}

async function textOfRequest(
  tables: Tables,
  requestId: string,
): Promise<{ readonly request: string | null; readonly response: string | null } | undefined> {
  const bodyOf = async (id: string) =>
    tables
      .selectFrom("request")
      .select(["request_text", "response_text"])
      .where("request_id", "=", id)
      .executeTakeFirst();
  const row = await bodyOf(requestId);
  if (row === undefined) return undefined;
  const decode = (bytes: Uint8Array | null): TextBody | null =>
    bytes === null ? null : fromBinary(TextBodySchema, bytes);
  // The chain of bases, newest first.
  const chain: TextBody[] = [];
  for (let body = decode(row.request_text); body !== null; ) {
    chain.push(body);
    const { baseRequestId } = body;
    if (baseRequestId === "") break;
    body = decode((await bodyOf(baseRequestId))?.request_text ?? null);
  }
  const response = decode(row.response_text);
  return {
    request: expandText(chain.reverse()),
    response: response === null ? null : expandText([response]),
  };
}
