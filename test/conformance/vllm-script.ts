import { asArray, asRecord, asString, type JsonRecord } from "../../sidecar/dialects/json-value.ts";
import {
  type EngineRequest,
  type EngineScript,
  jsonSteps,
  type Step,
  streamSteps,
} from "./scripted-engine.ts";
import { pieces, renderPrompt, tokenId } from "./toy-tokenizer.ts";

/** What the pretended model says in one choice. */
export interface EngineAnswer {
  readonly content?: string;
  readonly reasoning?: string;
  readonly toolCalls?: readonly {
    readonly id: string;
    readonly name: string;
    readonly arguments: string;
  }[];
  readonly finishReason?: string;
  readonly stopReason?: string;
}

export interface VllmOptions {
  readonly model?: string;
  /** Default: a few words made from the prompt and the choice's index. */
  readonly answer?: (request: EngineRequest, choiceIndex: number) => EngineAnswer;
  readonly tokensPerChunk?: number;
  /** `none`: an engine without ids. `short`: the parser swallowed the last chunk's. */
  readonly ids?: "full" | "none" | "short";
  /** `nan`: a bare NaN, which is no JSON. `clamped`: -9999. `none`: no logprobs. */
  readonly logprobs?: "full" | "none" | "nan" | "clamped";
  /** Spans of the native engine, in tokens of the response. */
  readonly policyVersions?: readonly {
    readonly version: number;
    readonly start: number;
    readonly end: number;
  }[];
  /** SGLang's way: streams carry no ids. */
  readonly streamsIds?: boolean;
  /** Sizes of the writes of a stream, repeated. Default: one write per event. */
  readonly writeSizes?: readonly number[];
  /** Awaited before the answer, and between the events of a stream. */
  readonly beforeAnswer?: Promise<unknown>;
  readonly betweenEvents?: (index: number) => Promise<unknown> | undefined;
  readonly error?: { readonly status: number; readonly body: unknown };
}

interface Choice {
  readonly index: number;
  readonly answer: EngineAnswer;
  readonly parts: readonly Part[];
}

/** One token: which delta member it lands in, its text, and its id. */
interface Part {
  readonly delta: JsonRecord;
  readonly text: string;
  readonly id: number;
}

const END_ID = 2;

/**
 * An engine that answers as vLLM does: same members, same places, ids and logprobs only when they
 * are asked for. Deterministic: the same prompt gives the same answer, and the prompt of a next
 * turn extends prompt and response of the one before.
 */
export function vllmScript(options: VllmOptions = {}): EngineScript {
  return (request) => {
    const path = request.url.split("?")[0];
    if (request.method === "GET" && path === "/v1/models") {
      return jsonSteps(200, {
        object: "list",
        data: [{ id: options.model ?? "toy", object: "model" }],
      });
    }
    if (request.method === "GET") return jsonSteps(path === "/health" ? 200 : 404, {});
    if (options.error !== undefined) return jsonSteps(options.error.status, options.error.body);
    if (path === "/tokenize") {
      const tokens = renderPrompt(request.json);
      return jsonSteps(200, { count: tokens.length, max_model_len: 4096, tokens });
    }
    const api = path === "/v1/completions" ? "completions" : "chat";
    return answerSteps(request, api, options);
  };
}

async function* answerSteps(
  request: EngineRequest,
  api: "chat" | "completions",
  options: VllmOptions,
): AsyncIterable<Step> {
  if (options.beforeAnswer !== undefined) yield { until: options.beforeAnswer };
  const count = typeof request.json["n"] === "number" ? request.json["n"] : 1;
  const choices = Array.from({ length: count }, (_none, index) => {
    const answer = options.answer?.(request, index) ?? defaultAnswer(request, index);
    return { index, answer, parts: answerParts(answer) };
  });
  if (request.json["stream"] !== true) {
    yield* jsonSteps(200, wholeJson(request, api, choices, options));
    return;
  }
  const events = [...streamEvents(request, api, choices, options)].map(
    (json) => `data: ${json}\n\n`,
  );
  events.push("data: [DONE]\n\n");
  if (options.writeSizes !== undefined) {
    yield* streamSteps(events.join(""), options.writeSizes);
    return;
  }
  yield { head: 200, headers: { "content-type": "text/event-stream; charset=utf-8" } };
  for (const [index, event] of events.entries()) {
    const pause = options.betweenEvents?.(index);
    if (pause !== undefined) yield { until: pause };
    yield { write: event };
  }
  yield { end: true };
}

function defaultAnswer(request: EngineRequest, index: number): EngineAnswer {
  const seed = renderPrompt(request.json).reduce((sum, id) => (sum * 31 + id) % 9973, index);
  return { content: `answer ${seed} of choice ${index}` };
}

function answerParts(answer: EngineAnswer): Part[] {
  const parts: Part[] = [];
  const add = (texts: readonly string[], delta: (text: string) => JsonRecord) => {
    for (const text of texts) parts.push({ delta: delta(text), text, id: tokenId(text) });
  };
  add(pieces(answer.reasoning ?? ""), (text) => ({ reasoning_content: text }));
  add(pieces(answer.content ?? ""), (text) => ({ content: text }));
  for (const [index, call] of (answer.toolCalls ?? []).entries()) {
    const head = {
      index,
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: "" },
    };
    add([`<call>${call.name}`], () => ({ tool_calls: [head] }));
    add(pieces(call.arguments), (text) => ({
      tool_calls: [{ index, function: { arguments: text } }],
    }));
  }
  parts.push({ delta: {}, text: "", id: END_ID });
  return parts;
}

function* streamEvents(
  request: EngineRequest,
  api: "chat" | "completions",
  choices: readonly Choice[],
  options: VllmOptions,
): Iterable<string> {
  const base = baseMembers(request, api, true, options);
  const ids = wantsIds(request, options) && options.streamsIds !== false;
  const promptIds = renderPrompt(request.json);
  const size = options.tokensPerChunk ?? 1;
  if (api === "chat") {
    const first = choices.map(({ index }) => ({
      index,
      delta: { role: "assistant", content: "" },
      logprobs: null,
      finish_reason: null,
      ...(ids ? { token_ids: null } : {}),
    }));
    yield encode({ ...base, choices: first, ...(ids ? { prompt_token_ids: promptIds } : {}) });
  }
  const longest = Math.max(...choices.map(({ parts }) => parts.length));
  for (let at = 0; at < longest; at += size) {
    for (const choice of choices) {
      const parts = choice.parts.slice(at, at + size);
      if (parts.length === 0) continue;
      const isLast = at + size >= choice.parts.length;
      const finish = isLast
        ? finishMembers(choice, options, wantsIds(request, options))
        : { finish_reason: null };
      const shown = parts.length === 1 ? [parts] : api === "chat" ? groupDeltas(parts) : [parts];
      for (const [position, group] of shown.entries()) {
        const isTail = position === shown.length - 1;
        const hidden = options.ids === "short" && isLast && isTail;
        yield encode({
          ...base,
          choices: [
            {
              index: choice.index,
              ...(api === "chat"
                ? { delta: mergeDelta(group) }
                : { text: group.map((part) => part.text).join("") }),
              logprobs: logprobMembers(request, api, group, options),
              ...(isTail ? finish : { finish_reason: null }),
              ...(ids ? { token_ids: hidden ? [] : group.map((part) => part.id) } : {}),
              ...(ids && api === "completions" && at === 0 ? { prompt_token_ids: promptIds } : {}),
            },
          ],
        });
      }
    }
  }
  if (asRecord(request.json["stream_options"])?.["include_usage"] === true) {
    yield encode({ ...base, choices: [], usage: usage(promptIds, choices) });
  }
}

/** Neighbours that land in the same member share a chunk. */
function groupDeltas(parts: readonly Part[]): Part[][] {
  const groups: Part[][] = [];
  for (const part of parts) {
    const last = groups.at(-1);
    const previous = last?.at(-1);
    const isSame =
      previous !== undefined && kind(previous) === kind(part) && kind(part) !== "tool_calls";
    if (last !== undefined && (isSame || kind(part) === "")) last.push(part);
    else groups.push([part]);
  }
  return groups;
}

function kind(part: Part): string {
  return Object.keys(part.delta)[0] ?? "";
}

function mergeDelta(group: readonly Part[]): JsonRecord {
  const [first] = group;
  if (first === undefined || kind(first) === "tool_calls") return first?.delta ?? {};
  const member = kind(first);
  return member === "" ? {} : { [member]: group.map((part) => part.text).join("") };
}

function wholeJson(
  request: EngineRequest,
  api: "chat" | "completions",
  choices: readonly Choice[],
  options: VllmOptions,
): string {
  const ids = wantsIds(request, options);
  const promptIds = renderPrompt(request.json);
  const entries = choices.map((choice) => {
    const { answer, parts, index } = choice;
    const kept = options.ids === "short" ? parts.slice(0, -1) : parts;
    const calls = (answer.toolCalls ?? []).map(({ id, ...called }) => ({
      id,
      type: "function",
      function: called,
    }));
    const message = {
      role: "assistant",
      content: answer.content ?? null,
      ...(answer.reasoning === undefined ? {} : { reasoning_content: answer.reasoning }),
      tool_calls: calls,
    };
    return {
      index,
      ...(api === "chat" ? { message } : { text: answer.content ?? "" }),
      logprobs: logprobMembers(request, api, parts, options),
      ...finishMembers(choice, options, ids),
      ...(ids ? { token_ids: kept.map((part) => part.id) } : {}),
      ...(ids && api === "completions" ? { prompt_token_ids: promptIds } : {}),
    };
  });
  return encode({
    ...baseMembers(request, api, false, options),
    choices: entries,
    usage: usage(promptIds, choices),
    ...(ids && api === "chat" ? { prompt_token_ids: promptIds } : {}),
  });
}

function baseMembers(
  request: EngineRequest,
  api: string,
  isChunk: boolean,
  options: VllmOptions,
): JsonRecord {
  const object =
    api === "completions" ? "text_completion" : `chat.completion${isChunk ? ".chunk" : ""}`;
  const model = asString(request.json["model"]) ?? options.model ?? "toy";
  return {
    id: `${api === "chat" ? "chatcmpl" : "cmpl"}-${request.index}`,
    object,
    created: 1_700_000_000,
    model,
  };
}

function finishMembers(choice: Choice, options: VllmOptions, asksIds: boolean): JsonRecord {
  const { answer } = choice;
  const fallback = (answer.toolCalls ?? []).length > 0 ? "tool_calls" : "stop";
  const spans = options.policyVersions;
  return {
    finish_reason: answer.finishReason ?? fallback,
    stop_reason: answer.stopReason ?? null,
    ...(spans === undefined || !asksIds
      ? {}
      : { policy_versions: spans.map((span) => ({ ...span })) }),
  };
}

function wantsIds(request: EngineRequest, options: VllmOptions): boolean {
  return request.json["return_token_ids"] === true && options.ids !== "none";
}

/** Placeholder that `encode` turns into the bare word, which no JSON encoder writes. */
const NAN = "\u0000NaN";

function logprobMembers(
  request: EngineRequest,
  api: "chat" | "completions",
  parts: readonly Part[],
  options: VllmOptions,
): JsonRecord | null {
  const asked = request.json["logprobs"];
  const wants = api === "chat" ? asked === true : typeof asked === "number";
  if (!wants || options.logprobs === "none") return null;
  const values = parts.map((part) => {
    if (part.id === END_ID && options.logprobs === "nan") return NAN;
    if (part.id === END_ID && options.logprobs === "clamped") return -9999;
    return -(part.id % 1000) / 256;
  });
  const tokens = parts.map((part) => part.text);
  if (api === "completions") {
    return { text_offset: tokens.map(() => 0), token_logprobs: values, tokens, top_logprobs: [] };
  }
  const content = tokens.map((token, index) => ({
    token,
    logprob: values[index] ?? null,
    bytes: [...Buffer.from(token)],
    top_logprobs: [],
  }));
  return { content };
}

function usage(promptIds: readonly number[], choices: readonly Choice[]): JsonRecord {
  const completion_tokens = choices.reduce((sum, { parts }) => sum + parts.length, 0);
  const prompt_tokens = promptIds.length;
  return {
    prompt_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    completion_tokens,
    prompt_tokens_details: null,
  };
}

function encode(value: JsonRecord): string {
  return JSON.stringify(value).replaceAll(JSON.stringify(NAN), "NaN");
}

/** For tests that count: how many of the request's messages are tool results. */
export function toolResultCount(request: EngineRequest): number {
  const messages = asArray(request.json["messages"]) ?? [];
  return messages.filter((message) => asRecord(message)?.["role"] === "tool").length;
}
