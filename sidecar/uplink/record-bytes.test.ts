import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type CallRecord, CallRecordSchema } from "../../proto/gen/outrigger/v1/record_pb.ts";
import { RecordSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { recordBytes } from "./record-bytes.ts";

const uint32 = fc.oneof(fc.nat({ max: 300 }), fc.integer({ min: 0, max: 2 ** 32 - 1 }));
const int64 = fc.oneof(fc.nat({ max: 300 }), fc.maxSafeNat()).map(BigInt);
const text = fc.oneof(
  fc.string({ maxLength: 40 }),
  fc.string({ unit: "binary", maxLength: 40 }),
  fc.nat({ max: 20_000 }).map((length) => "é".repeat(length)),
);
const bytes = fc.uint8Array({ maxLength: 300 });
const maybe = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> =>
  fc.option(value, { nil: undefined });
/** Members that are undefined are left out, as `create` wants it. */
const record = <T extends object>(members: { [K in keyof T]: fc.Arbitrary<T[K]> }) =>
  fc
    .record(members)
    .map((value) => Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined)));

const ids = record({ count: uint32, width: uint32, data: bytes, deflatedPlanes: fc.boolean() });
const floats = record({ data: bytes, deflated: fc.boolean() });
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
  requestId: text,
  rolloutId: text,
  attemptId: text,
  dialect: fc.nat({ max: 4 }),
  streamMode: fc.nat({ max: 3 }),
  model: text,
  policyVersion: int64,
  prompt: maybe(
    record({ baseRequestId: text, sharedLength: uint32, newIds: maybe(ids), baseChoice: uint32 }),
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

describe("recordBytes", () => {
  it("writes what the generated code writes, byte for byte, and reads", () => {
    fc.assert(
      fc.property(fc.maxSafeNat(), call, (seq, value) => {
        const message = create(RecordSchema, {
          seq: BigInt(seq),
          body: { case: "call", value },
        });
        const written = recordBytes(seq, value);
        expect(written.equals(toBinary(RecordSchema, message))).toBe(true);
        expect(fromBinary(RecordSchema, written).body.case).toBe("call");
      }),
      { numRuns: 200 },
    );
  });

  it("writes every field of the messages that a call is made of", () => {
    // A field that is added to the proto must be added here: else it would be lost silently.
    const fields = CallRecordSchema.fields.map((field) => field.number);
    expect(fields).toEqual(Array.from({ length: 24 }, (_, index) => index + 1));
  });
});
