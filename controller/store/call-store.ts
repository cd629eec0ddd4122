import type { Call } from "../../core/call.ts";
import type { Record as SpooledRecord } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
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

export interface CallStore {
  /** Differs for every database file. */
  readonly storeId: string;
  /** One transaction for the whole batch; idempotent by request and event id. */
  appendRecords(batch: readonly ReceivedRecord[]): Promise<AppendResult>;
  /** Events that did not come through a sidecar; idempotent by event id. */
  appendEvents(events: readonly StoredEvent[]): Promise<AppendResult>;
  /** In order of arrival, one per choice, token ids in full. */
  callsOfAttempt(rolloutId: string, attemptId: string): Promise<Call[]>;
  eventsOfAttempt(rolloutId: string, attemptId: string): Promise<StoredEvent[]>;
  /** Of one rollout, or of all. */
  callCounts(rolloutId?: string): Promise<CallCounts>;
  /** Redacted bodies; null where text was not captured, undefined for an unknown request. */
  textOfRequest(
    requestId: string,
  ): Promise<{ readonly request: string | null; readonly response: string | null } | undefined>;
  /** Highest sequence number stored of a spool; 0 for none. */
  ackedSeq(spoolId: string): Promise<number>;
}

export function openCallStore(database: Database): Promise<CallStore> {
  return Promise.reject(new Error(`not usable yet ${String(database)}`));
}
