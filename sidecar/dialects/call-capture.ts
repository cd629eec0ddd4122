import type { FinishReason, PolicyVersionSpan } from "../../core/call.ts";
import type { SseBlock } from "../sse/sse-block.ts";
import type { ChunkScan } from "./chunk-scan.ts";
import { decideCompleteness, type IncompleteReason } from "./decide-completeness.ts";
import {
  type ByteRange,
  isNullAt,
  type MemberRange,
  skipValue,
  skipWhitespace,
  walkObject,
} from "./json-scan.ts";
import { asArray, asCount, asRecord, asText, type JsonValue, parseJson } from "./json-value.ts";
import { addTokens, type ChoiceState, newChoice, readChoice } from "./read-choice.ts";
import {
  type ChoiceBytes,
  readChoiceBytes,
  readIds,
  readInteger,
  textKeys,
} from "./read-choice-bytes.ts";
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
  /** What the engine called itself and the answer; read where the text is kept. */
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
  /** A whole answer as it came; `scan` where the relay has looked for its members. */
  addBody(body: Buffer, scan?: ChunkScan): void;
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
    addBody: (body, scan) => {
      if (scan !== undefined && addScanned(state, body, body.length, scan, false)) return;
      add(state, parseJson(body.toString("utf8")), false);
    },
    result: () => buildResult(state),
  };
}

function addBlock(state: CaptureState, block: SseBlock): void {
  if (state.isDone || !block.hasData) return;
  const { scan } = block;
  if (
    scan !== undefined &&
    !block.isParsed &&
    addScanned(state, block.raw, block.dataEnd, scan, true)
  )
    return;
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
    const index = asCount(choice["index"]);
    // Whose tokens these are is then a guess, and a guess is not trained on.
    if (index === undefined && (choice["index"] ?? null) !== null) state.hasUnreadable = true;
    readChoice(choiceOf(state, index ?? position), choice, isChunk);
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

/** What stands beside `choices`, read from the bytes. */
interface RootBytes {
  id: string | undefined;
  model: string | undefined;
  usage: CapturedUsage | undefined;
  promptIds: number[] | undefined;
}

/** The usual form, read from its bytes; false, and nothing changed, for what must be parsed. */
function addScanned(
  state: CaptureState,
  raw: Buffer,
  end: number,
  scan: ChunkScan,
  isChunk: boolean,
): boolean {
  if (skipWhitespace(raw, scan.close + 1) < end) return false;
  const root = readRoot(state, raw, scan.members);
  if (root === undefined) return false;
  const texts = !state.keepsText ? textKeys.none : isChunk ? textKeys.ofChunk : textKeys.ofAnswer;
  const choices: ChoiceBytes[] = [];
  for (const scanned of scan.choices) {
    const choice = readChoiceBytes(raw, scanned, texts);
    if (choice === undefined) return false;
    choices.push(choice);
  }
  state.engineRequestId ??= root.id ?? null;
  state.engineModel ??= root.model ?? null;
  state.usage = root.usage ?? state.usage;
  state.promptIds = root.promptIds ?? state.promptIds;
  for (let position = 0; position < choices.length; position += 1) {
    const { index, promptIds, ids, logprobs, rest } = choices[position] as ChoiceBytes;
    const known = choiceOf(state, index ?? position);
    if (promptIds !== undefined && promptIds.length > 0) known.promptIds = promptIds;
    addTokens(known, ids, logprobs);
    readChoice(known, rest, isChunk);
  }
  return true;
}

/** Undefined where an error is reported, a member stands twice, or ids are in another form. */
function readRoot(
  state: CaptureState,
  raw: Buffer,
  members: readonly MemberRange[],
): RootBytes | undefined {
  const root: RootBytes = {
    id: undefined,
    model: undefined,
    usage: undefined,
    promptIds: undefined,
  };
  let seen = 0;
  // They are told only beside the text.
  const readsNames = state.keepsText;
  for (let at = 0; at < members.length; at += 1) {
    const { key, value } = members[at] as MemberRange;
    const bit = rootKeys[key];
    if (bit === undefined) continue;
    if ((seen & bit) !== 0) return undefined;
    seen |= bit;
    if (isNullAt(raw, value)) continue;
    switch (key) {
      case "id":
        if (readsNames && state.engineRequestId === null) root.id = asText(parsedAt(raw, value));
        break;
      case "model":
        if (readsNames && state.engineModel === null) root.model = asText(parsedAt(raw, value));
        break;
      case "usage": {
        root.usage = readPlainUsage(raw, value);
        if (root.usage !== undefined) break;
        const usage = parsedAt(raw, value);
        if (usage === undefined) return undefined;
        root.usage = readUsage(usage);
        break;
      }
      case "prompt_token_ids": {
        const ids = readIds(raw, value.start, value.end);
        if (ids === undefined) return undefined;
        if (ids.length > 0) root.promptIds = ids;
        break;
      }
      case "object":
        // `"error"`: vLLM's older way to report one.
        if (value.end - value.start <= 10) return undefined;
        break;
      case "error":
        return undefined;
    }
  }
  return root;
}

/** Members that are read, each with its bit; without a prototype: keys are the engine's. */
const rootKeys: Readonly<Record<string, number | undefined>> = Object.assign(Object.create(null), {
  id: 1,
  model: 2,
  usage: 4,
  prompt_token_ids: 8,
  object: 16,
  error: 32,
  choices: 64,
});

function parsedAt(raw: Buffer, { start, end }: ByteRange): JsonValue | undefined {
  return parseJson(raw.toString("utf8", start, end));
}

/** The usual form: two counts, and no details. */
function readPlainUsage(raw: Buffer, { start }: ByteRange): CapturedUsage | undefined {
  let promptTokens: number | undefined;
  let completionTokens: number | undefined;
  let isPlain = true;
  const close = walkObject(raw, start, (key, _keyStart, from) => {
    const end = skipValue(raw, from);
    if (key === "prompt_tokens") {
      if (promptTokens !== undefined) isPlain = false;
      promptTokens = asCount(readInteger(raw, from, end));
    } else if (key === "completion_tokens") {
      if (completionTokens !== undefined) isPlain = false;
      completionTokens = asCount(readInteger(raw, from, end));
    } else if (key !== "total_tokens" && raw[from] === OPEN_BRACE) isPlain = false;
    return end;
  });
  if (close === undefined || !isPlain) return undefined;
  if (promptTokens === undefined || completionTokens === undefined) return undefined;
  return { promptTokens, completionTokens, cachedTokens: 0, reasoningTokens: 0 };
}

const OPEN_BRACE = 0x7b;

function readUsage(value: unknown): CapturedUsage | undefined {
  const usage = asRecord(value);
  const promptTokens = asCount(usage?.["prompt_tokens"]);
  const completionTokens = asCount(usage?.["completion_tokens"]);
  if (usage === undefined || promptTokens === undefined || completionTokens === undefined) {
    return undefined;
  }
  const prompt = asRecord(usage["prompt_tokens_details"]);
  const completion = asRecord(usage["completion_tokens_details"]);
  return {
    promptTokens,
    completionTokens,
    cachedTokens: asCount(prompt?.["cached_tokens"]) ?? 0,
    reasoningTokens: asCount(completion?.["reasoning_tokens"]) ?? 0,
  };
}

function buildResult(state: CaptureState): CaptureResult {
  const choices = [...state.choices.values()];
  if (choices.length > 1) choices.sort((a, b) => a.index - b.index);
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
    logprobs: toFloat32(choice.logprobs),
    finishReason: choice.finishReason,
    stopReason: choice.stopReason,
    policyVersions:
      choice.policyVersions ?? wholeSpan(choice.weightVersion, choice.responseIds?.length ?? 0),
    text: choice.text.join(""),
    reasoning: choice.reasoning.join(""),
    toolCalls:
      choice.toolCalls?.calls.map((call) => ({
        id: call.id,
        name: call.name,
        arguments: call.fragments.join(""),
      })) ?? [],
    complete: incompleteReason === undefined,
    incompleteReason,
  };
}

/** Ids that are no ids (see `ids-invalid`) leave the array unusable as a whole. */
function toInt32(ids: readonly number[] | null): Int32Array | null {
  if (ids === null) return null;
  // By hand: the constructor asks an array for its iterator first.
  const typed = new Int32Array(ids.length);
  for (let at = 0; at < ids.length; at += 1) {
    const id = ids[at] as number;
    if (!Number.isInteger(id)) return null;
    typed[at] = id;
  }
  return typed;
}

function toFloat32(values: readonly number[] | null): Float32Array | null {
  if (values === null) return null;
  const typed = new Float32Array(values.length);
  for (let at = 0; at < values.length; at += 1) typed[at] = values[at] as number;
  return typed;
}

function wholeSpan(
  version: number | undefined,
  length: number,
): readonly PolicyVersionSpan[] | undefined {
  return version === undefined || length === 0 ? undefined : [{ version, start: 0, end: length }];
}
