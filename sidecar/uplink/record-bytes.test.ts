import { clone, create, equals, fromBinary, toBinary } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  type CallRecord,
  CallRecordSchema,
  TimingSchema,
} from "../../proto/gen/outrigger/v1/record_pb.ts";
import { RecordSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { restoreIds } from "../../runtime/records/restore-ids.ts";
import { recordBytes } from "./record-bytes.ts";

const uint32 = fc.oneof(fc.nat({ max: 300 }), fc.integer({ min: 0, max: 2 ** 32 - 1 }));
const int64 = fc.oneof(fc.nat({ max: 300 }), fc.maxSafeNat()).map(BigInt);
const text = fc.oneof(
  fc.string({ maxLength: 40 }),
  fc.string({ unit: "binary", maxLength: 40 }),
  fc.nat({ max: 4 }).map((length) => "é".repeat(length * 5000)),
);
/** Often with a beginning in common, of one, two or more bytes a character. */
const id = fc
  .tuple(fc.constantFrom("", "ca", "call_\u00e9", "call_01\ud83d\ude00", "call_01"), text)
  .map((parts) => parts.join(""));
const bytes = fc.uint8Array({ maxLength: 300 });
const maybe = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> =>
  fc.option(value, { nil: undefined });
/** Members that are undefined are left out, as `create` wants it. */
const record = <T extends object>(members: { [K in keyof T]: fc.Arbitrary<T[K]> }) =>
  fc
    .record(members)
    .map((value) => Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined)));

const ids = record({
  count: uint32,
  width: uint32,
  data: bytes,
  deflatedPlanes: fc.boolean(),
  largest: uint32,
  classes: fc.boolean(),
});
const floats = record({ data: bytes, deflated: fc.boolean(), count: uint32 });
const body = record({
  baseRequestId: text,
  sharedBytes: uint32,
  rest: bytes,
  deflated: fc.boolean(),
  sharedSuffixBytes: uint32,
});
const choice = record({
  callId: text,
  index: uint32,
  tokens: maybe(record({ ids: maybe(ids), logprobs: maybe(floats) })),
  finishReason: maybe(text),
  stopReason: maybe(text),
  policyVersions: fc.array(record({ version: int64, start: uint32, end: uint32 }), {
    maxLength: 3,
  }),
  complete: fc.boolean(),
  incompleteReason: text,
});
const call: fc.Arbitrary<CallRecord> = record({
  requestId: id,
  rolloutId: id,
  attemptId: id,
  dialect: fc.nat({ max: 4 }),
  streamMode: fc.nat({ max: 3 }),
  model: text,
  policyVersion: int64,
  prompt: maybe(
    record({ baseRequestId: id, sharedLength: uint32, newIds: maybe(ids), baseChoice: uint32 }),
  ),
  choices: fc.array(choice, { maxLength: 3 }),
  usage: maybe(
    record({ promptTokens: uint32, completionTokens: uint32, cachedTokens: maybe(uint32) }),
  ),
  delivered: fc.boolean(),
  retryOf: text,
  replayOf: text,
  sideCallClass: text,
  errorReason: text,
  httpStatus: uint32,
  timing: maybe(
    record({
      receivedAtMs: fc.double(),
      sentAfterUs: maybe(int64),
      firstByteAfterUs: maybe(int64),
      finishedAfterUs: int64,
      heldUs: int64,
    }),
  ),
  requestText: maybe(body),
  responseText: maybe(body),
  droppedRequestParts: fc.array(text, { maxLength: 3 }),
  sessionId: text,
  engine: text,
  samplingJson: text,
  inherit: fc.boolean(),
}).map((init) => create(CallRecordSchema, init));

/** As the generated code has it: ids without the characters that another id begins with. */
function shortened(call: CallRecord): CallRecord {
  const short = clone(CallRecordSchema, call);
  [short.attemptId, short.attemptIdShared] = withoutStart(call.rolloutId, call.attemptId);
  if (short.prompt !== undefined)
    [short.prompt.baseRequestId, short.prompt.baseIdShared] = withoutStart(
      call.requestId,
      short.prompt.baseRequestId,
    );
  return short;
}

function withoutStart(id: string, other: string): [string, number] {
  const shared = /^[\0-\x7f]*/.exec(other)?.[0] ?? "";
  let length = shared.length;
  while (!id.startsWith(other.slice(0, length))) length -= 1;
  return length < 4 ? [other, 0] : [other.slice(length), length];
}

describe("recordBytes", () => {
  it("writes what the generated code writes, byte for byte, and ids come back in full", () => {
    fc.assert(
      fc.property(fc.maxSafeNat(), call, (seq, value) => {
        const message = create(RecordSchema, {
          seq: BigInt(seq),
          body: { case: "call", value: shortened(value) },
        });
        const written = recordBytes(seq, value);
        expect(written.equals(toBinary(RecordSchema, message))).toBe(true);
        const read = fromBinary(RecordSchema, written).body.value as CallRecord;
        restoreIds(read);
        const again = toBinary(CallRecordSchema, read);
        expect(Buffer.compare(again, toBinary(CallRecordSchema, value))).toBe(0);
      }),
      { numRuns: 200 },
    );
  });

  it("leaves out what the attempt's and the base's id begin with", () => {
    const value = create(CallRecordSchema, {
      requestId: "call_0123456789abcdef0000000b",
      rolloutId: "rollout-17",
      attemptId: "rollout-17.1",
      prompt: { baseRequestId: "call_0123456789abcdef0000000a" },
    });
    const read = fromBinary(RecordSchema, recordBytes(1, value)).body.value as CallRecord;
    expect([read.attemptId, read.prompt?.baseRequestId]).toEqual([".1", "a"]);
    restoreIds(read);
    expect(equals(CallRecordSchema, read, value)).toBe(true);
  });

  it("writes numbers in the place of bigints", () => {
    const numbers = { $typeName: "outrigger.v1.Timing", receivedAtMs: 0.5, heldUs: 7 } as const;
    const value = create(CallRecordSchema, { policyVersion: 3n });
    const written = recordBytes(1, {
      ...value,
      policyVersion: 3,
      timing: { ...numbers, finishedAfterUs: 2 ** 40 },
    });
    value.timing = create(TimingSchema, {
      receivedAtMs: 0.5,
      heldUs: 7n,
      finishedAfterUs: 2n ** 40n,
    });
    expect(written.equals(recordBytes(1, value))).toBe(true);
  });

  it.each([-1, 2 ** 60, Number.POSITIVE_INFINITY])("refuses %d rather than write it", (version) => {
    const value = { ...create(CallRecordSchema), policyVersion: version };
    expect(() => recordBytes(1, value)).toThrow(RangeError);
  });

  it("writes every field of the messages that a call is made of", () => {
    // A field that is added to the proto must be added here: else it would be lost silently.
    const fields = CallRecordSchema.fields.map((field) => field.number);
    expect(fields).toEqual(Array.from({ length: 25 }, (_, index) => index + 1));
  });
});
