import type { Logger } from "../../runtime/log.ts";
import { sleep } from "../../runtime/sleep.ts";
import type { AppendResult, CallStore, ReceivedRecord } from "../store/call-store.ts";

/** A received record that waits for its commit. */
export interface QueuedRecord extends ReceivedRecord {
  readonly bytes: number;
  /** Called once the record is durable. */
  readonly onDurable: () => void;
}

export interface RecordBatcherOptions {
  readonly store: Pick<CallStore, "appendRecords">;
  readonly log: Logger;
  readonly maxBatchRecords: number;
  readonly maxBatchDelayMs: number;
  /** Above this, `room` waits. */
  readonly maxQueuedBytes: number;
  readonly onCommitted: (result: AppendResult) => void;
}

/**
 * Group commit. Consumes received records; produces one transaction for many of them and then
 * tells each that it is durable. Waits for a full batch or for the delay, whichever is first. When
 * the store is slow the queue fills and `room` makes the streams wait; when the store fails the
 * batch is tried again, and nothing is acknowledged meanwhile.
 */
export interface RecordBatcher {
  add(record: QueuedRecord): void;
  /** Undefined when there is room in the queue, else a promise of it. */
  room(): Promise<void> | undefined;
  /** Resolves when everything added so far is committed, or given up after `close`. */
  flush(): Promise<void>;
  /** Commits what is queued; a store that fails then is not tried again. */
  close(): Promise<void>;
}

export function createRecordBatcher(options: RecordBatcherOptions): RecordBatcher {
  const { store, log, maxBatchRecords, maxBatchDelayMs, maxQueuedBytes } = options;
  const stop = new AbortController();
  let queue: QueuedRecord[] = [];
  let queuedBytes = 0;
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;
  let waiting: (() => void)[] = [];

  const start = (): void => {
    clearTimeout(timer);
    timer = undefined;
    running ??= commitAll().finally(() => {
      running = undefined;
    });
  };
  const commitAll = async (): Promise<void> => {
    while (queue.length > 0) {
      const batch = queue.slice(0, maxBatchRecords);
      if (!(await commit(batch))) return;
      queue = queue.slice(batch.length);
      for (const record of batch) queuedBytes -= record.bytes;
      for (const record of batch) record.onDurable();
      if (queuedBytes <= maxQueuedBytes) for (const go of waiting.splice(0)) go();
    }
  };
  const commit = async (batch: readonly QueuedRecord[]): Promise<boolean> => {
    for (let failures = 0; ; failures += 1) {
      try {
        options.onCommitted(await store.appendRecords(batch));
        return true;
      } catch (error) {
        log.error({ err: error, records: batch.length, failures }, "records could not be stored");
        if (stop.signal.aborted) return false;
        await sleep(Math.min(5_000, 100 * 2 ** failures), stop.signal);
      }
    }
  };
  return {
    add: (record) => {
      queue.push(record);
      queuedBytes += record.bytes;
      if (queue.length >= maxBatchRecords) start();
      else timer ??= setTimeout(start, maxBatchDelayMs);
    },
    room: () =>
      queuedBytes <= maxQueuedBytes
        ? undefined
        : new Promise((resolve) => {
            waiting.push(resolve);
          }),
    flush: async () => {
      start();
      await running;
    },
    close: async () => {
      stop.abort();
      start();
      await running;
      for (const go of waiting.splice(0)) go();
      waiting = [];
    },
  };
}
