import { randomUUID } from "node:crypto";
import { create, toBinary } from "@bufbuild/protobuf";
import { type EventRecord, EventRecordSchema } from "../../proto/gen/outrigger/v1/record_pb.ts";
import {
  type CaptureSettings,
  RecordSchema,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Logger } from "../../runtime/log.ts";
import type { FinishedCall } from "../capture/finished-call.ts";
import { compileOperatorRules } from "../redaction/operator-rules.ts";
import { createRedactor, type Redactor } from "../redaction/redactor.ts";
import { createLostRecords } from "./lost-records.ts";
import { recordBytes, type WireCall } from "./record-bytes.ts";
import { type CapturedText, createRecordEncoder } from "./record-encoder.ts";
import type { Spool, SpoolRefusal } from "./spool.ts";

/** Whether a record is safe on disk; where it is not, it is lost, counted and logged. */
export type RecordOutcome =
  | { readonly kept: true }
  | { readonly kept: false; readonly reason: SpoolRefusal };

/** Something other than a call: a reward or an event posted by the harness, a refused identity. */
export interface SidecarEvent {
  /** Unique in the world: the idempotency key. */
  readonly eventId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly dataJson: string;
  readonly atMs: number;
}

/** Redacts and encodes finished calls and events, and writes them to the spool. */
export class RecordWriter {
  readonly #spool: Spool;
  readonly #log: Logger;
  readonly #now: () => number;
  readonly #lost = createLostRecords();
  readonly #encoder = createRecordEncoder();
  readonly #eventRedactor = createRedactor();
  /** Undefined while text is not captured. */
  #redactor: Redactor | undefined;
  #settingsCount = 0;

  constructor(spool: Spool, log: Logger, now: () => number) {
    this.#spool = spool;
    this.#log = log;
    this.#now = now;
  }

  get droppedCount(): number {
    return this.#lost.total;
  }

  record(call: FinishedCall): RecordOutcome {
    try {
      const encoded = this.#encoder.encode(call, this.#redactedText(call));
      const outcome = this.#appendCall(encoded.record);
      if (outcome.kept) encoded.remember();
      return outcome;
    } catch (error) {
      // A defect here must not reach the harness's call.
      this.#log.error({ err: error, requestId: call.requestId }, "a call was not recorded");
      this.#lost.add({ ...call, reason: "spool-io-error" });
      return { kept: false, reason: "spool-io-error" };
    }
  }

  event(event: SidecarEvent): RecordOutcome {
    const dataJson = (this.#redactor ?? this.#eventRedactor).redactText(event.dataJson);
    const value = create(EventRecordSchema, { ...event, dataJson });
    const outcome = this.#spool.append((seq) => eventBytes(seq, value), true);
    if (!outcome.kept) this.#noteLoss(value, outcome.reason);
    return outcome;
  }

  /** Refer to nothing recorded so far: the next records go to a store that lacks it. */
  forget(): void {
    this.#encoder.forget();
  }

  /** Whether and how text is captured from now on. */
  applySettings(capture: CaptureSettings | undefined): void {
    this.#redactor = undefined;
    this.#settingsCount += 1;
    const settings = this.#settingsCount;
    if (capture?.captureText !== true) return;
    compileOperatorRules(capture.redactionPatterns).then(
      (rules) => {
        if (settings === this.#settingsCount) this.#redactor = createRedactor(rules);
      },
      (error: Error) => {
        // Rather no text than text with what the operator wanted out of it.
        this.#log.error({ err: error }, "text is not captured");
      },
    );
  }

  /** Tells the controller which attempts have lost records, through the spool like the rest. */
  reportLosses(): void {
    if (this.#lost.isEmpty) return;
    const losses = this.#lost.take();
    const unreported = losses.filter((loss) => {
      const value = create(EventRecordSchema, {
        eventId: randomUUID(),
        rolloutId: loss.rolloutId,
        attemptId: loss.attemptId,
        eventType: "records-dropped",
        dataJson: JSON.stringify({ count: loss.count, reason: loss.reason }),
        atMs: this.#now(),
      });
      return !this.#spool.append((seq) => eventBytes(seq, value), true).kept;
    });
    this.#lost.putBack(unreported);
  }

  #appendCall(record: WireCall): RecordOutcome {
    const outcome = this.#spool.append((seq) => recordBytes(seq, record));
    if (outcome.kept) this.reportLosses();
    else this.#noteLoss(record, outcome.reason);
    return outcome;
  }

  #noteLoss(of: WireCall | EventRecord, reason: SpoolRefusal): void {
    this.#lost.add({ rolloutId: of.rolloutId, attemptId: of.attemptId, reason });
    const { total } = this.#lost;
    // The first, then each power of two: loud, and not a second flood.
    if ((total & (total - 1)) === 0)
      this.#log.error({ reason, droppedRecords: total }, "record dropped");
  }

  #redactedText(call: FinishedCall): CapturedText {
    const redactor = this.#redactor;
    if (redactor === undefined) return {};
    return {
      ...(call.requestText !== undefined && { request: redactor.redactBytes(call.requestText) }),
      ...(call.responseText !== undefined && { response: redactor.redactBytes(call.responseText) }),
    };
  }
}

function eventBytes(seq: number, value: EventRecord): Uint8Array {
  return toBinary(
    RecordSchema,
    create(RecordSchema, { seq: BigInt(seq), body: { case: "event", value } }),
  );
}
