import type { FinishReason, PolicyVersionSpan } from "../../core/call.ts";
import {
  asArray,
  asCount,
  asNumber,
  asRecord,
  asText,
  type JsonRecord,
  type JsonValue,
} from "./json-value.ts";
import { createToolCallTracker, type ToolCallTracker } from "./tool-call-tracker.ts";

/** One choice while its answer arrives. */
export interface ChoiceState {
  readonly index: number;
  promptIds: number[] | null;
  responseIds: number[] | null;
  logprobs: number[] | null;
  finishReason: FinishReason | null;
  stopReason: string | number | null;
  policyVersions: readonly PolicyVersionSpan[] | undefined;
  /** SGLang's one version for the whole response. */
  weightVersion: number | undefined;
  readonly text: string[];
  readonly reasoning: string[];
  /** Most answers have none. */
  toolCalls: ToolCallTracker | undefined;
}

export function newChoice(index: number): ChoiceState {
  return {
    index,
    promptIds: null,
    responseIds: null,
    logprobs: null,
    finishReason: null,
    stopReason: null,
    policyVersions: undefined,
    weightVersion: undefined,
    text: [],
    reasoning: [],
    toolCalls: undefined,
  };
}

/**
 * Adds one `choices[]` entry, of a chunk (ids and logprobs are deltas, of several tokens or none)
 * or of a whole answer. Nothing is checked here: `decideCompleteness` judges the sum.
 */
export function readChoice(state: ChoiceState, choice: JsonRecord, isChunk: boolean): void {
  readTokens(state, choice);
  state.finishReason = asText(choice["finish_reason"]) ?? state.finishReason;
  state.stopReason = readStopReason(choice) ?? state.stopReason;
  state.policyVersions =
    readSpans(choice["policy_versions"]) ??
    readSpans(choice["weight_versions"]) ??
    state.policyVersions;
  const message = asRecord(choice[isChunk ? "delta" : "message"]);
  pushText(state.text, message === undefined ? choice["text"] : message["content"]);
  pushText(state.reasoning, message?.["reasoning_content"] ?? message?.["reasoning"]);
  for (const [position, call] of (asArray(message?.["tool_calls"]) ?? []).entries()) {
    state.toolCalls ??= createToolCallTracker();
    state.toolCalls.add(call, position);
  }
}

function readTokens(state: ChoiceState, choice: JsonRecord): void {
  const promptIds = asArray(choice["prompt_token_ids"]);
  if (promptIds !== undefined && promptIds.length > 0) state.promptIds = promptIds as number[];
  const meta = asRecord(choice["meta_info"]);
  const pairs = asArray(meta?.["output_token_logprobs"]);
  const ids = asArray(choice["token_ids"]) ?? pairs?.map((pair) => asArray(pair)?.[1] ?? null);
  state.responseIds = append(state.responseIds, ids as number[] | undefined);
  const logprobs = readLogprobs(choice["logprobs"]) ?? pairs?.map((pair) => asArray(pair)?.[0]);
  state.logprobs = append(
    state.logprobs,
    // As they are recorded, so that what is beyond float32 is seen as the infinity that it becomes.
    logprobs?.map((logprob) => Math.fround(asNumber(logprob) ?? Number.NaN)),
  );
  state.weightVersion = readVersion(meta?.["weight_version"]) ?? state.weightVersion;
}

/** Ids and logprobs of one chunk that were read from its bytes. */
export function addTokens(
  state: ChoiceState,
  ids: readonly number[] | undefined,
  logprobs: readonly number[] | undefined,
): void {
  state.responseIds = append(state.responseIds, ids);
  state.logprobs = append(state.logprobs, logprobs);
}

/** `logprobs.content[].logprob` (chat) or `logprobs.token_logprobs[]` (text completions). */
function readLogprobs(value: JsonValue | undefined): readonly unknown[] | undefined {
  const logprobs = asRecord(value);
  const content = asArray(logprobs?.["content"]);
  if (content !== undefined) return content.map((entry) => asRecord(entry)?.["logprob"]);
  return asArray(logprobs?.["token_logprobs"]);
}

/** In place: a response of n tokens in n chunks must not be copied n times. */
function append(known: number[] | null, added: readonly number[] | undefined): number[] | null {
  if (added === undefined) return known;
  if (known === null) return [...added];
  for (const value of added) known.push(value);
  return known;
}

function readStopReason(choice: JsonRecord): string | number | undefined {
  const reason = choice["stop_reason"] ?? choice["matched_stop"];
  return typeof reason === "string" || typeof reason === "number" ? reason : undefined;
}

/** `[{version, start, end}]`; an entry that is none gives NaN, which completeness refuses. */
function readSpans(value: JsonValue | undefined): readonly PolicyVersionSpan[] | undefined {
  const spans = asArray(value);
  if (spans === undefined || spans.length === 0) return undefined;
  return spans.map((entry) => {
    const span = asRecord(entry);
    return {
      version: readVersion(span?.["version"]) ?? Number.NaN,
      start: asCount(span?.["start"]) ?? Number.NaN,
      end: asCount(span?.["end"]) ?? Number.NaN,
    };
  });
}

/** Engines carry the version that a trainer named as a string; "default" is no version. */
function readVersion(value: unknown): number | undefined {
  if (typeof value === "number")
    return Number.isSafeInteger(value) && value >= 0 ? value : undefined;
  return typeof value === "string" && /^\d{1,15}$/.test(value) ? Number(value) : undefined;
}

/** Content is a string, or parts with a `text` each. */
function pushText(texts: string[], value: JsonValue | undefined): void {
  const text = asText(value);
  if (text !== undefined) texts.push(text);
  for (const part of asArray(value) ?? []) {
    const partText = asText(asRecord(part)?.["text"]);
    if (partText !== undefined) texts.push(partText);
  }
}
