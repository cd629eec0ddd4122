import type { Call } from "../../core/call.ts";
import type {
  CallRecord,
  Choice,
  PackedIds,
  TokenSequence,
} from "../../proto/gen/outrigger/v1/record_pb.ts";
import { unpackFloats, unpackIds } from "../../runtime/records/pack-ids.ts";

/** Settings that a record may take from its base's. */
export interface ExpandedSettings {
  readonly model: string;
  readonly engine: string;
  readonly sessionId: string;
  readonly samplingJson: string;
}

/** A record with everything in full; one call per choice. */
export interface ExpandedRequest {
  readonly record: CallRecord;
  readonly settings: ExpandedSettings;
  readonly calls: readonly Call[];
}

/** Why ids could not be had from a record: its base is not in the store, or its bytes are wrong. */
export type ExpansionFailure = "base-missing" | "record-corrupt";

interface Expanded extends ExpandedRequest {
  readonly prompt: Int32Array | null;
}

/**
 * The inverse of the sidecar's delta encoding. `records` are of one attempt, every base before the
 * records that refer to it. A record whose ids cannot be had gives calls that are incomplete with
 * an `ExpansionFailure` as the reason, and so does every record that refers to it.
 */
export function expandCalls(records: readonly CallRecord[]): ExpandedRequest[] {
  const byRequest = new Map<string, Expanded>();
  return records.map((record) => {
    const expanded = expandRecord(record, byRequest);
    byRequest.set(record.requestId, expanded);
    return expanded;
  });
}

function expandRecord(record: CallRecord, earlier: ReadonlyMap<string, Expanded>): Expanded {
  const base = earlier.get(record.prompt?.baseRequestId ?? "");
  const settings = expandSettings(record, base?.settings);
  const prompt = record.prompt === undefined ? null : expandPrompt(record.prompt, base);
  const failure = typeof prompt === "string" ? prompt : undefined;
  const promptIds = typeof prompt === "string" ? null : prompt;
  const calls = record.choices.map((choice) => expandChoice(record, choice, promptIds, failure));
  return { record, settings, prompt: promptIds, calls };
}

function expandSettings(record: CallRecord, base: ExpandedSettings | undefined): ExpandedSettings {
  const inherited = record.inherit ? base : undefined;
  return {
    model: record.model || (inherited?.model ?? ""),
    engine: record.engine || (inherited?.engine ?? ""),
    sessionId: record.sessionId || (inherited?.sessionId ?? ""),
    samplingJson: record.samplingJson || (inherited?.samplingJson ?? ""),
  };
}

function expandPrompt(
  sequence: TokenSequence,
  base: Expanded | undefined,
): Int32Array | ExpansionFailure {
  const fresh = idsOf(sequence.newIds);
  if (fresh === undefined) return "record-corrupt";
  if (sequence.baseRequestId === "") return fresh;
  const basePrompt = base?.prompt ?? null;
  if (base === undefined || basePrompt === null) return "base-missing";
  const choiceAt = base.record.choices.findIndex((c) => c.index === sequence.baseChoice);
  const response = base.calls[choiceAt]?.responseIds ?? new Int32Array();
  const { sharedLength } = sequence;
  if (choiceAt < 0 || sharedLength > basePrompt.length + response.length) return "record-corrupt";
  const prompt = new Int32Array(sharedLength + fresh.length);
  prompt.set(basePrompt.subarray(0, sharedLength));
  if (sharedLength > basePrompt.length)
    prompt.set(response.subarray(0, sharedLength - basePrompt.length), basePrompt.length);
  prompt.set(fresh, sharedLength);
  return prompt;
}

function idsOf(packed: PackedIds | undefined): Int32Array | undefined {
  if (packed === undefined) return undefined;
  try {
    return unpackIds(packed);
  } catch {
    // The caller says so by its typed failure.
    return undefined;
  }
}

function expandChoice(
  record: CallRecord,
  choice: Choice,
  promptIds: Int32Array | null,
  promptFailure: ExpansionFailure | undefined,
): Call {
  const response = expandResponse(choice);
  const failure = promptFailure ?? response.failure;
  const receivedAtMs = record.timing?.receivedAtMs ?? 0;
  const reason =
    failure ?? (choice.complete ? undefined : choice.incompleteReason || "unspecified");
  const retryOf = record.replayOf || record.retryOf;
  return {
    callId: choice.callId || `${record.requestId}.${choice.index}`,
    rolloutId: record.rolloutId,
    attemptId: record.attemptId,
    requestId: record.requestId,
    choiceIndex: choice.index,
    promptIds,
    responseIds: response.ids,
    logprobs: response.logprobs,
    policyVersion: Number(record.policyVersion),
    ...(choice.policyVersions.length > 0 && {
      policyVersions: choice.policyVersions.map(({ version, start, end }) => ({
        version: Number(version),
        start,
        end,
      })),
    }),
    startedAt: receivedAtMs,
    finishedAt: receivedAtMs + Number(record.timing?.finishedAfterUs ?? 0n) / 1000,
    delivered: record.delivered,
    complete: reason === undefined,
    ...(reason !== undefined && { incompleteReason: reason }),
    finishReason: choice.finishReason ?? null,
    usage:
      record.usage === undefined
        ? null
        : {
            promptTokens: record.usage.promptTokens,
            completionTokens: record.usage.completionTokens,
          },
    ...(record.sideCallClass !== "" && { sideCall: true }),
    ...(retryOf !== "" && { retryOf }),
  };
}

interface ExpandedResponse {
  readonly ids: Int32Array | null;
  readonly logprobs: Float32Array | null;
  readonly failure?: ExpansionFailure;
}

function expandResponse({ tokens }: Choice): ExpandedResponse {
  if (tokens === undefined) return { ids: null, logprobs: null };
  try {
    return {
      ids: tokens.ids === undefined ? null : unpackIds(tokens.ids),
      logprobs: tokens.logprobs === undefined ? null : unpackFloats(tokens.logprobs),
    };
  } catch {
    return { ids: null, logprobs: null, failure: "record-corrupt" };
  }
}
