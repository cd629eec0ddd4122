import type { CallRecord } from "../../proto/gen/outrigger/v1/record_pb.ts";

/**
 * Gives a received record its ids in full: on the wire an id may lack the characters with which
 * another id of the record begins. Throws a RangeError when the other id has not as many.
 */
export function restoreIds(record: CallRecord): void {
  record.attemptId = start(record.rolloutId, record.attemptIdShared) + record.attemptId;
  record.attemptIdShared = 0;
  const { prompt } = record;
  if (prompt === undefined) return;
  prompt.baseRequestId = start(record.requestId, prompt.baseIdShared) + prompt.baseRequestId;
  prompt.baseIdShared = 0;
}

function start(id: string, length: number): string {
  if (length > id.length)
    throw new RangeError(`an id of ${id.length} characters does not begin with ${length}`);
  return id.slice(0, length);
}
