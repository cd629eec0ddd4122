import type { FinishReason, PolicyVersionSpan } from "../../core/call.ts";
import type { SseBlock } from "../sse/sse-block.ts";
import type { ChunkScan } from "./chunk-scan.ts";
import { decideCompleteness, type IncompleteReason } from "./decide-completeness.ts";
import { isNullAt, type MemberRange, skipWhitespace } from "./json-scan.ts";
import { asArray, asNumber, asRecord, asText } from "./json-value.ts";
import { addTokens, type ChoiceState, newChoice, readChoice } from "./read-choice.ts";
import { type ChoiceBytes, readChoiceBytes } from "./read-choice-bytes.ts";
import { readEngineError } from "./read-engine-error.ts";

/** One choice of an answer as the engine reported it. Absent is null; missing is never zero. */
export interface CapturedChoice {
  readonly choiceIndex: number;
  readonly promptIds: Int32Array | null;
  readonly responseIds: Int32Array | null;
  /** One per response id where complete; NaN where the engine gave no number. */
  readonly logprobs: Float32Array | null;
  readonly finishReason: FinishReason | null;
  /** The stop string or token id that ended the response. */
  readonly stopReason: string | number | null;
  /** Undefined where the engine does not report versions. */
  readonly policyVersions: readonly PolicyVersionSpan[] | undefined;
  readonly text: string;
  readonly reasoning: string;
  readonly toolCalls: readonly CapturedToolCall[];
  readonly complete: boolean;
  readonly incompleteReason: IncompleteReason | undefined;
}

export interface CapturedToolCall {
  readonly id: string | null;
  readonly name: string;
  /** As sampled; not necessarily JSON. */
  readonly arguments: string;
}

export interface CapturedUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
  readonly reasoningTokens: number;
}

export interface CaptureResult {
  /** In order of index; empty when the engine said nothing that has a choice. */
  readonly choices: readonly CapturedChoice[];
  /** Of the whole request: `completionTokens` counts all choices. */
  readonly usage: CapturedUsage | null;
  readonly engineModel: string | null;
  readonly engineRequestId: string | null;
  /** The engine reported an error inside its answer. */
  readonly engineError: string | null;
}

export interface CallCapture {
  /** One block of the engine's event stream; comments and what follows `[DONE]` say nothing. */
  addBlock(block: SseBlock): void;
  /** A parsed whole answer. */
  addResponse(response: unknown): void;
  /** What is known so far: also right after an abort, where the partial output is kept. */
  result(): CaptureResult;
}

interface CaptureState {
  readonly keepsText: boolean;
  readonly choices: Map<number, ChoiceState>;
  promptIds: number[] | null;
  usage: CapturedUsage | null;
  engineModel: string | null;
  engineRequestId: string | null;
  engineError: string | null;
  hasUnreadable: boolean;
  isDone: boolean;
}

/**
 * Collects ids, logprobs, versions and text of one request from what the engine answered, in the
 * formats of vLLM, SGLang and the native engine, chat and text completions alike. Without
 * `keepsText` the text of streamed chunks is not looked at.
 */
export function createCallCapture(options: { readonly keepsText?: boolean } = {}): CallCapture {
  const state: CaptureState = {
    keepsText: options.keepsText ?? true,
    choices: new Map(),
    promptIds: null,
    usage: null,
    engineModel: null,
    engineRequestId: null,
    engineError: null,
    hasUnreadable: false,
    isDone: false,
  };
  return {
    addBlock: (block) => addBlock(state, block),
    addResponse: (response) => add(state, response, false),
    result: () => buildResult(state),
  };
}

function addBlock(state: CaptureState, block: SseBlock): void {
  if (state.isDone || !block.hasData) return;
  const { scan } = block;
  if (scan !== undefined && !block.isParsed && addScanned(state, block, scan)) return;
  if (block.data === null || block.data.length === 0) return;
  if (block.isDone) state.isDone = true;
  else add(state, block.json(), true);
}

function add(state: CaptureState, value: unknown, isChunk: boolean): void {
  const root = asRecord(value);
  if (root === undefined) {
    state.hasUnreadable = true;
    return;
  }
  state.engineModel ??= asText(root["model"]) ?? null;
  state.engineRequestId ??= asText(root["id"]) ?? null;
  state.usage = readUsage(root["usage"]) ?? state.usage;
  state.engineError ??= readEngineError(root)?.message ?? null;
  const choices = asArray(root["choices"]) ?? [];
  const ids = asArray(root["prompt_token_ids"]);
  if (ids !== undefined && ids.length > 0) state.promptIds = ids as number[];
  for (const [position, entry] of choices.entries()) {
    const choice = asRecord(entry);
    if (choice === undefined) continue;
    const index = asNumber(choice["index"]) ?? position;
    readChoice(choiceOf(state, index), choice, isChunk);
  }
}

function choiceOf(state: CaptureState, index: number): ChoiceState {
  let known = state.choices.get(index);
  if (known === undefined) {
    known = newChoice(index);
    state.choices.set(index, known);
  }
  return known;
}

/** The usual chunk, read from its bytes; false, and nothing changed, for one that must be parsed. */
function addScanned(state: CaptureState, block: SseBlock, scan: ChunkScan): boolean {
  const { raw, dataEnd } = block;
  if (scan.choices.length === 0 || skipWhitespace(raw, scan.close + 1) < dataEnd) return false;
  if (!scan.members.every((member) => isUsual(state, raw, member))) return false;
  const choices: ChoiceBytes[] = [];
  for (const members of scan.choices) {
    const choice = readChoiceBytes(raw, members, state.keepsText);
    if (choice === undefined) return false;
    choices.push(choice);
  }
  for (let position = 0; position < choices.length; position += 1) {
    const { index, ids, logprobs, rest } = choices[position] as ChoiceBytes;
    const known = choiceOf(state, index ?? position);
    addTokens(known, ids, logprobs);
    readChoice(known, rest, true);
  }
  return true;
}

/** Nothing beside `choices` that the capture would read. */
function isUsual(state: CaptureState, raw: Buffer, { key, value }: MemberRange): boolean {
  switch (key) {
    case "id":
      return state.engineRequestId !== null;
    case "model":
      return state.engineModel !== null;
    case "usage":
    case "error":
    case "prompt_token_ids":
      return isNullAt(raw, value);
    case "object":
      // `"error"`: vLLM's older way to report one.
      return value.end - value.start > 10;
    default:
      return true;
  }
}

function readUsage(value: unknown): CapturedUsage | undefined {
  const usage = asRecord(value);
  const promptTokens = asNumber(usage?.["prompt_tokens"]);
  const completionTokens = asNumber(usage?.["completion_tokens"]);
  if (usage === undefined || promptTokens === undefined || completionTokens === undefined) {
    return undefined;
  }
  const prompt = asRecord(usage["prompt_tokens_details"]);
  const completion = asRecord(usage["completion_tokens_details"]);
  return {
    promptTokens,
    completionTokens,
    cachedTokens: asNumber(prompt?.["cached_tokens"]) ?? 0,
    reasoningTokens: asNumber(completion?.["reasoning_tokens"]) ?? 0,
  };
}

function buildResult(state: CaptureState): CaptureResult {
  const choices = [...state.choices.values()].sort((a, b) => a.index - b.index);
  const counted = choices.reduce((sum, choice) => sum + (choice.responseIds?.length ?? 0), 0);
  return {
    choices: choices.map((choice) => buildChoice(state, choice, counted)),
    usage: state.usage,
    engineModel: state.engineModel,
    engineRequestId: state.engineRequestId,
    engineError: state.engineError,
  };
}

function buildChoice(
  state: CaptureState,
  choice: ChoiceState,
  allResponseIds: number,
): CapturedChoice {
  const promptIds = choice.promptIds ?? state.promptIds;
  const incompleteReason = decideCompleteness({
    promptIds,
    responseIds: choice.responseIds,
    logprobs: choice.logprobs,
    finishReason: choice.finishReason,
    policyVersions: choice.policyVersions,
    allResponseIds,
    completionTokens: state.usage?.completionTokens,
    hasEngineError: state.engineError !== null,
    hasUnreadable: state.hasUnreadable,
  });
  return {
    choiceIndex: choice.index,
    promptIds: toInt32(promptIds),
    responseIds: toInt32(choice.responseIds),
    logprobs: choice.logprobs === null ? null : new Float32Array(choice.logprobs),
    finishReason: choice.finishReason,
    stopReason: choice.stopReason,
    policyVersions:
      choice.policyVersions ?? wholeSpan(choice.weightVersion, choice.responseIds?.length ?? 0),
    text: choice.text.join(""),
    reasoning: choice.reasoning.join(""),
    toolCalls: choice.toolCalls.calls.map((call) => ({
      id: call.id,
      name: call.name,
      arguments: call.fragments.join(""),
    })),
    complete: incompleteReason === undefined,
    incompleteReason,
  };
}

/** Ids that are no ids (see `ids-invalid`) leave the array unusable as a whole. */
function toInt32(ids: readonly number[] | null): Int32Array | null {
  if (ids === null || !ids.every((id) => Number.isInteger(id))) return null;
  return new Int32Array(ids);
}

function wholeSpan(
  version: number | undefined,
  length: number,
): readonly PolicyVersionSpan[] | undefined {
  return version === undefined || length === 0 ? undefined : [{ version, start: 0, end: length }];
}
