import { createContextIndex, type SharedContext } from "../../core/records/context-index.ts";
import {
  type Choice,
  Dialect,
  type PolicyVersionSpan,
  StreamMode,
  type Timing,
  type TokenSequence,
  type Usage,
} from "../../proto/gen/outrigger/v1/record_pb.ts";
import { packFloats, packIds } from "../../runtime/records/pack-ids.ts";
import type { DialectName, FinishedCall, FinishedChoice } from "../capture/finished-call.ts";
import type { WireCall, WireForm } from "./record-bytes.ts";
import { createTextBases, encodeText } from "./text-bases.ts";

export interface EncodedCall {
  readonly record: WireCall;
  /** To be called once the record is in the spool: only then may later ones refer to it. */
  readonly remember: () => void;
}

/** Redacted bodies, where text is captured. */
export interface CapturedText {
  readonly request?: Uint8Array;
  readonly response?: Uint8Array;
}

/**
 * Turns finished calls into records that hold what is new: token ids against the earlier call of
 * the attempt with the longest shared context, request text against an earlier request, and
 * settings against the base's. Sizes per trajectory grow with its length, not with its square.
 */
export interface RecordEncoder {
  encode(call: FinishedCall, text: CapturedText): EncodedCall;
  /** Refer to nothing recorded so far: the next records go to a store that lacks it. */
  forget(): void;
}

export interface RecordEncoderOptions {
  /** Token contexts kept over all attempts; 4 bytes each. */
  readonly maxContextTokens?: number;
  readonly maxTextBytes?: number;
}

/** A choice whose context may be a base. */
interface Owner {
  readonly requestId: string;
  readonly choice: number;
  readonly settings: Settings;
}

interface Settings {
  readonly model: string;
  readonly engine: string;
  readonly sessionId: string;
  readonly samplingJson: string;
}

const dialects: Readonly<Record<DialectName, Dialect>> = {
  chat: Dialect.CHAT,
  completions: Dialect.COMPLETIONS,
  responses: Dialect.RESPONSES,
  messages: Dialect.MESSAGES,
};
const streamModes: Readonly<Record<FinishedCall["streamMode"], StreamMode>> = {
  none: StreamMode.NONE,
  relayed: StreamMode.RELAYED,
  synthesised: StreamMode.SYNTHESISED,
};

export function createRecordEncoder(options: RecordEncoderOptions = {}): RecordEncoder {
  const contexts = createContextIndex<Owner>({ maxTokens: options.maxContextTokens ?? 4_000_000 });
  const texts = createTextBases(options.maxTextBytes ?? 16_000_000);
  return {
    encode: (call, text) => {
      const key = `${call.rolloutId}\n${call.attemptId}`;
      const base = call.promptIds === null ? undefined : contexts.longest(key, call.promptIds);
      const settings = settingsOf(call);
      const record = encodeCall(call, settings, base);
      if (text.request !== undefined) record.requestText = texts.encode(key, text.request);
      if (text.response !== undefined) record.responseText = encodeText(text.response);
      const remember = (): void => {
        addContexts(contexts, key, call, settings);
        if (text.request !== undefined) texts.add(key, call.requestId, text.request);
      };
      return { record, remember };
    },
    forget: () => {
      contexts.clear();
      texts.clear();
    },
  };
}

function addContexts(
  contexts: ReturnType<typeof createContextIndex<Owner>>,
  key: string,
  call: FinishedCall,
  settings: Settings,
): void {
  if (call.promptIds === null) return;
  const { requestId } = call;
  // A request without choices (the engine failed) still has a prompt to refer to, but no choice
  // to name it by.
  for (const choice of call.choices) {
    const owner = { requestId, choice: choice.index, settings };
    contexts.add(key, owner, call.promptIds, choice.responseIds ?? new Int32Array());
  }
}

function settingsOf(call: FinishedCall): Settings {
  return {
    model: call.model,
    engine: call.engine ?? "",
    sessionId: call.sessionId ?? "",
    samplingJson: call.samplingJson,
  };
}

/** What need not be said again is equal to the base's; then an empty one must not differ. */
function canInherit(own: Settings, base: Settings): boolean {
  return (
    isSayable(own.model, base.model) &&
    isSayable(own.engine, base.engine) &&
    isSayable(own.sessionId, base.sessionId) &&
    isSayable(own.samplingJson, base.samplingJson)
  );
}

function isSayable(own: string, base: string): boolean {
  return own !== "" || base === "";
}

/**
 * Messages are written out as literals: `create` walks descriptors, which for the nested messages
 * of one call cost as much as all else that is done to it here.
 */
function encodeCall(
  call: FinishedCall,
  settings: Settings,
  base: SharedContext<Owner> | undefined,
): WireCall {
  const known =
    base !== undefined && canInherit(settings, base.owner.settings)
      ? base.owner.settings
      : undefined;
  const record: WireCall = {
    $typeName: "outrigger.v1.CallRecord",
    requestId: call.requestId,
    rolloutId: call.rolloutId,
    attemptId: call.attemptId,
    attemptIdShared: 0,
    dialect: dialects[call.dialect],
    streamMode: streamModes[call.streamMode],
    model: unless(settings.model, known?.model),
    policyVersion: call.policyVersion,
    choices: [],
    delivered: call.delivered,
    retryOf: call.retryOf ?? "",
    replayOf: call.replayOf ?? "",
    sideCallClass: call.sideCallClass ?? "",
    errorReason: call.errorReason ?? "",
    httpStatus: call.httpStatus,
    timing: encodeTiming(call.timing),
    droppedRequestParts: call.droppedRequestParts,
    sessionId: unless(settings.sessionId, known?.sessionId),
    engine: unless(settings.engine, known?.engine),
    samplingJson: unless(settings.samplingJson, known?.samplingJson),
    inherit: known !== undefined,
  };
  for (const choice of call.choices) record.choices.push(encodeChoice(call.requestId, choice));
  if (call.promptIds !== null) record.prompt = encodePrompt(call.promptIds, base);
  if (call.usage !== null) record.usage = encodeUsage(call.usage);
  return record;
}

function unless(own: string, known: string | undefined): string {
  return own === known ? "" : own;
}

function encodePrompt(prompt: Int32Array, base: SharedContext<Owner> | undefined): TokenSequence {
  const sharedLength = base?.sharedLength ?? 0;
  return {
    $typeName: "outrigger.v1.TokenSequence",
    baseRequestId: base?.owner.requestId ?? "",
    baseIdShared: 0,
    baseChoice: base?.owner.choice ?? 0,
    sharedLength,
    newIds: packIds(sharedLength === 0 ? prompt : prompt.subarray(sharedLength)),
  };
}

function encodeUsage(usage: NonNullable<FinishedCall["usage"]>): Usage {
  const { promptTokens, completionTokens, cachedTokens } = usage;
  const encoded: Usage = { $typeName: "outrigger.v1.Usage", promptTokens, completionTokens };
  if (cachedTokens !== undefined) encoded.cachedTokens = cachedTokens;
  return encoded;
}

function encodeChoice(requestId: string, choice: FinishedChoice): WireForm<Choice> {
  const encoded: WireForm<Choice> = {
    $typeName: "outrigger.v1.Choice",
    callId: choice.callId === `${requestId}.${choice.index}` ? "" : choice.callId,
    index: choice.index,
    policyVersions: [],
    complete: choice.complete,
    incompleteReason: choice.incompleteReason ?? "",
  };
  for (const span of choice.policyVersions) encoded.policyVersions.push(encodeSpan(span));
  if (choice.finishReason !== null) encoded.finishReason = choice.finishReason;
  if (choice.stopReason !== null) encoded.stopReason = JSON.stringify(choice.stopReason);
  const { responseIds, logprobs } = choice;
  if (responseIds === null && logprobs === null) return encoded;
  encoded.tokens = { $typeName: "outrigger.v1.ResponseTokens" };
  if (responseIds !== null) encoded.tokens.ids = packIds(responseIds);
  if (logprobs !== null) encoded.tokens.logprobs = packFloats(logprobs);
  return encoded;
}

function encodeSpan({
  version,
  start,
  end,
}: FinishedChoice["policyVersions"][number]): WireForm<PolicyVersionSpan> {
  return { $typeName: "outrigger.v1.PolicyVersionSpan", version, start, end };
}

function encodeTiming(timing: FinishedCall["timing"]): WireForm<Timing> {
  const { receivedAtMs, sentAtMs, firstByteAtMs, finishedAtMs, heldMs } = timing;
  const encoded: WireForm<Timing> = {
    $typeName: "outrigger.v1.Timing",
    receivedAtMs,
    finishedAfterUs: micros(finishedAtMs - receivedAtMs),
    heldUs: micros(heldMs),
  };
  if (sentAtMs !== undefined) encoded.sentAfterUs = micros(sentAtMs - receivedAtMs);
  if (firstByteAtMs !== undefined) encoded.firstByteAfterUs = micros(firstByteAtMs - receivedAtMs);
  return encoded;
}

function micros(ms: number): number {
  return Math.max(0, Math.round(ms * 1000));
}
