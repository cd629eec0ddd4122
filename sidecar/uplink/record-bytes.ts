import type {
  CallRecord,
  Choice,
  PackedFloats,
  PackedIds,
  PolicyVersionSpan,
  TextBody,
  Timing,
  TokenSequence,
  Usage,
} from "../../proto/gen/outrigger/v1/record_pb.ts";

const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;

/**
 * A message as it is written here: whole numbers may take the place of bigints, which are slow to
 * make.
 */
export type WireForm<T> = T extends bigint
  ? bigint | number
  : T extends string | number | boolean | Uint8Array | undefined
    ? T
    : { [Name in keyof T]: WireForm<T[Name]> };
export type WireCall = Omit<WireForm<CallRecord>, "droppedRequestParts"> & {
  readonly droppedRequestParts: readonly string[];
};

/** `Record.seq` and `Record.call`. */
const seqField = 1;
const callField = 2;

/** Fewer shared characters would not pay for saying how many there are. */
const minSharedStart = 4;

/**
 * The wire bytes of `Record { seq, call }`, the same that the generated code writes once ids that
 * begin alike are shortened (`restoreIds` is the inverse). By hand, because walking descriptors for
 * the one message that every call makes cost more than the rest of the capture; a property test
 * holds the two together.
 */
export function recordBytes(seq: number, call: WireCall): Buffer {
  const out = new WireWriter(initialBytes(call));
  out.varint(seqField, seq);
  const at = out.begin(callField);
  writeCall(out, call);
  out.end(at);
  return out.finish();
}

/** Room for all that may be large, so that a usual record is written without growing. */
function initialBytes(call: WireCall): number {
  let bytes = 512 + (call.prompt?.newIds?.data.length ?? 0);
  bytes += (call.requestText?.rest.length ?? 0) + (call.responseText?.rest.length ?? 0);
  for (const { tokens } of call.choices) {
    bytes += 128 + (tokens?.ids?.data.length ?? 0) + (tokens?.logprobs?.data.length ?? 0);
  }
  return bytes;
}

function writeCall(out: WireWriter, call: WireCall): void {
  const attemptIdShared = sharedStart(call.rolloutId, call.attemptId);
  out.text(1, call.requestId);
  out.text(2, call.rolloutId);
  out.text(3, call.attemptId.slice(attemptIdShared));
  out.varint(4, call.dialect);
  out.varint(5, call.streamMode);
  out.text(6, call.model);
  out.varint(7, Number(call.policyVersion));
  if (call.prompt !== undefined) writePrompt(out, call.requestId, call.prompt);
  for (const choice of call.choices) writeChoice(out, choice);
  if (call.usage !== undefined) writeUsage(out, call.usage);
  out.flag(11, call.delivered);
  out.text(12, call.retryOf);
  out.text(13, call.replayOf);
  out.text(14, call.sideCallClass);
  out.text(15, call.errorReason);
  out.varint(16, call.httpStatus);
  if (call.timing !== undefined) writeTiming(out, call.timing);
  if (call.requestText !== undefined) writeText(out, 18, call.requestText);
  if (call.responseText !== undefined) writeText(out, 19, call.responseText);
  for (const part of call.droppedRequestParts) out.text(20, part, true);
  out.text(21, call.sessionId);
  out.text(22, call.engine);
  out.text(23, call.samplingJson);
  out.flag(24, call.inherit);
  out.varint(25, attemptIdShared);
}

/** Characters with which both begin; 0 where leaving them out would not pay. */
function sharedStart(id: string, other: string): number {
  const end = Math.min(id.length, other.length);
  let shared = 0;
  // Of ASCII a part can be left out without cutting a character.
  while (
    shared < end &&
    id.charCodeAt(shared) < 0x80 &&
    id.charCodeAt(shared) === other.charCodeAt(shared)
  )
    shared += 1;
  return shared < minSharedStart ? 0 : shared;
}

function writePrompt(out: WireWriter, requestId: string, prompt: TokenSequence): void {
  const at = out.begin(8);
  const baseIdShared = sharedStart(requestId, prompt.baseRequestId);
  out.text(1, prompt.baseRequestId.slice(baseIdShared));
  out.varint(2, prompt.sharedLength);
  if (prompt.newIds !== undefined) writeIds(out, 3, prompt.newIds);
  out.varint(4, prompt.baseChoice);
  out.varint(5, baseIdShared);
  out.end(at);
}

function writeIds(out: WireWriter, field: number, ids: PackedIds): void {
  const at = out.begin(field);
  out.varint(1, ids.count);
  out.varint(2, ids.width);
  out.bytes(3, ids.data);
  out.flag(4, ids.deflatedPlanes);
  out.varint(5, ids.largest);
  out.flag(6, ids.classes);
  out.end(at);
}

function writeFloats(out: WireWriter, field: number, floats: PackedFloats): void {
  const at = out.begin(field);
  out.bytes(1, floats.data);
  out.flag(2, floats.deflated);
  out.varint(3, floats.count);
  out.end(at);
}

function writeChoice(out: WireWriter, choice: WireForm<Choice>): void {
  const at = out.begin(9);
  out.text(1, choice.callId);
  out.varint(2, choice.index);
  const { tokens, finishReason, stopReason } = choice;
  if (tokens !== undefined) {
    const inner = out.begin(3);
    if (tokens.ids !== undefined) writeIds(out, 1, tokens.ids);
    if (tokens.logprobs !== undefined) writeFloats(out, 2, tokens.logprobs);
    out.end(inner);
  }
  if (finishReason !== undefined) out.text(4, finishReason, true);
  if (stopReason !== undefined) out.text(5, stopReason, true);
  for (const span of choice.policyVersions) writeSpan(out, span);
  out.flag(7, choice.complete);
  out.text(8, choice.incompleteReason);
  out.end(at);
}

function writeSpan(out: WireWriter, span: WireForm<PolicyVersionSpan>): void {
  const at = out.begin(6);
  out.varint(1, Number(span.version));
  out.varint(2, span.start);
  out.varint(3, span.end);
  out.end(at);
}

function writeUsage(out: WireWriter, usage: Usage): void {
  const at = out.begin(10);
  out.varint(1, usage.promptTokens);
  out.varint(2, usage.completionTokens);
  if (usage.cachedTokens !== undefined) out.varint(3, usage.cachedTokens, true);
  out.end(at);
}

function writeTiming(out: WireWriter, timing: WireForm<Timing>): void {
  const at = out.begin(17);
  out.double(1, timing.receivedAtMs);
  if (timing.sentAfterUs !== undefined) out.varint(2, Number(timing.sentAfterUs), true);
  if (timing.firstByteAfterUs !== undefined) out.varint(3, Number(timing.firstByteAfterUs), true);
  out.varint(4, Number(timing.finishedAfterUs));
  out.varint(5, Number(timing.heldUs));
  out.end(at);
}

function writeText(out: WireWriter, field: number, text: TextBody): void {
  const at = out.begin(field);
  out.text(1, text.baseRequestId);
  out.varint(2, text.sharedBytes);
  out.bytes(3, text.rest);
  out.flag(4, text.deflated);
  out.varint(5, text.sharedSuffixBytes);
  out.end(at);
}

/** Up to this a string is written here: a native call costs more than its characters. */
const maxShortText = 32;

/**
 * Protobuf's wire format into one buffer. As in proto3, a scalar of its default value is left out
 * unless `isPresent` says that it is set. Integers are whole, from 0 to 2^53.
 */
class WireWriter {
  #bytes: Buffer;
  #at = 0;

  constructor(byteCount: number) {
    this.#bytes = Buffer.allocUnsafe(byteCount);
  }

  finish(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }

  varint(field: number, value: number, isPresent = false): void {
    if (value === 0 && !isPresent) return;
    this.#reserve(16);
    this.#tag(field, VARINT);
    this.#writeVarint(value);
  }

  flag(field: number, value: boolean): void {
    if (value) this.varint(field, 1);
  }

  double(field: number, value: number): void {
    if (Object.is(value, 0)) return;
    this.#reserve(16);
    this.#tag(field, FIXED64);
    this.#at = this.#bytes.writeDoubleLE(value, this.#at);
  }

  bytes(field: number, value: Uint8Array): void {
    if (value.length === 0) return;
    this.#reserve(16 + value.length);
    this.#tag(field, BYTES);
    this.#writeVarint(value.length);
    this.#bytes.set(value, this.#at);
    this.#at += value.length;
  }

  text(field: number, value: string, isPresent = false): void {
    const { length } = value;
    if (length === 0 && !isPresent) return;
    this.#reserve(16 + 3 * length);
    this.#tag(field, BYTES);
    if (length <= maxShortText && this.#writeAscii(value)) return;
    const byteCount = Buffer.byteLength(value);
    this.#writeVarint(byteCount);
    this.#bytes.write(value, this.#at, "utf8");
    this.#at += byteCount;
  }

  /** Starts a message; its length is known at `end`, which takes what this gives. */
  begin(field: number): number {
    this.#reserve(16);
    this.#tag(field, BYTES);
    this.#at += 1;
    return this.#at;
  }

  end(start: number): void {
    const length = this.#at - start;
    const extra = varintBytes(length) - 1;
    if (extra > 0) {
      this.#reserve(extra);
      this.#bytes.copyWithin(start + extra, start, this.#at);
    }
    const end = this.#at + extra;
    this.#at = start - 1;
    this.#writeVarint(length);
    this.#at = end;
  }

  /** False, and nothing written, when a character is not ASCII. */
  #writeAscii(value: string): boolean {
    const start = this.#at + 1;
    for (let index = 0; index < value.length; index += 1) {
      const code = value.charCodeAt(index);
      if (code > 0x7f) return false;
      this.#bytes[start + index] = code;
    }
    this.#bytes[this.#at] = value.length;
    this.#at = start + value.length;
    return true;
  }

  #tag(field: number, wireType: number): void {
    this.#writeVarint((field << 3) | wireType);
  }

  /** Bytes that nobody can read would stop every record behind them: rather none than those. */
  #writeVarint(value: number): void {
    if (value < 0 || value > Number.MAX_SAFE_INTEGER)
      throw new RangeError(`${value} cannot be in a record`);
    let rest = value;
    while (rest >= 0x80) {
      this.#bytes[this.#at] = (rest % 0x80) | 0x80;
      this.#at += 1;
      rest = Math.floor(rest / 0x80);
    }
    this.#bytes[this.#at] = rest;
    this.#at += 1;
  }

  #reserve(byteCount: number): void {
    const needed = this.#at + byteCount;
    if (needed <= this.#bytes.length) return;
    const grown = Buffer.allocUnsafe(Math.max(needed, 2 * this.#bytes.length));
    this.#bytes.copy(grown, 0, 0, this.#at);
    this.#bytes = grown;
  }
}

function varintBytes(value: number): number {
  let count = 1;
  for (let rest = value; rest >= 0x80; rest = Math.floor(rest / 0x80)) count += 1;
  return count;
}
