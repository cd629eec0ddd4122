import { asArray, asRecord, asString } from "../../sidecar/dialects/json-value.ts";
import { type EngineRequest, type EngineScript, jsonSteps, type Step } from "./scripted-engine.ts";
import { pieces } from "./toy-tokenizer.ts";
import type { EngineAnswer } from "./vllm-script.ts";

export interface OwnDialectOptions {
  readonly answer: (request: EngineRequest) => EngineAnswer;
  readonly usage: { readonly promptTokens: number; readonly completionTokens: number };
  readonly betweenEvents?: (index: number) => Promise<unknown> | undefined;
  readonly error?: { readonly status: number; readonly body: unknown };
}

type Event = { readonly type: string; readonly [member: string]: unknown };

/**
 * A service that speaks the Messages and the Responses API itself, written from their formats and
 * without the sidecar's codecs: what an SDK gets from it is what it must get through the sidecar
 * from an engine that says the same in chat completions.
 */
export function ownDialectScript(options: OwnDialectOptions): EngineScript {
  return (request) => {
    const { error } = options;
    if (error !== undefined) return jsonSteps(error.status, error.body);
    const isMessages = request.url.startsWith("/v1/messages");
    const whole = isMessages ? message(request, options) : response(request, options);
    if (request.json["stream"] !== true) return jsonSteps(200, whole);
    const events = isMessages
      ? messageEvents(request, options)
      : responseEvents(whole as Response, options.answer(request));
    return eventSteps(events, options);
  };
}

/** How many results of tools the request holds, in either API. */
export function ownToolResultCount(request: EngineRequest): number {
  const items = asArray(request.json["input"]) ?? [];
  const blocks = (asArray(request.json["messages"]) ?? []).flatMap(
    (turn) => asArray(asRecord(turn)?.["content"]) ?? [],
  );
  return [...items, ...blocks].filter((each) =>
    ["function_call_output", "tool_result"].includes(asString(asRecord(each)?.["type"]) ?? ""),
  ).length;
}

async function* eventSteps(
  events: readonly Event[],
  { betweenEvents }: OwnDialectOptions,
): AsyncIterable<Step> {
  yield { head: 200, headers: { "content-type": "text/event-stream; charset=utf-8" } };
  for (const [index, event] of events.entries()) {
    const pause = betweenEvents?.(index);
    if (pause !== undefined) yield { until: pause };
    yield { write: `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n` };
  }
  yield { end: true };
}

function messagesUsage({ usage }: OwnDialectOptions, outputTokens = usage.completionTokens) {
  return {
    input_tokens: usage.promptTokens,
    output_tokens: outputTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
  };
}

function message(request: EngineRequest, options: OwnDialectOptions): object {
  const { reasoning, content, toolCalls = [] } = options.answer(request);
  return {
    id: "msg_own",
    type: "message",
    role: "assistant",
    model: request.json["model"],
    content: [
      ...(reasoning === undefined
        ? []
        : [{ type: "thinking", thinking: reasoning, signature: "own" }]),
      ...(content === undefined ? [] : [{ type: "text", text: content }]),
      ...toolCalls.map(({ id, name, arguments: input }) => ({
        type: "tool_use",
        id,
        name,
        input: JSON.parse(input) as unknown,
      })),
    ],
    stop_reason: toolCalls.length > 0 ? "tool_use" : "end_turn",
    stop_sequence: null,
    usage: messagesUsage(options),
  };
}

function messageEvents(request: EngineRequest, options: OwnDialectOptions): Event[] {
  const { reasoning, content, toolCalls = [] } = options.answer(request);
  const start = { ...message(request, options), content: [], stop_reason: null };
  const events: Event[] = [
    { type: "message_start", message: { ...start, usage: messagesUsage(options, 0) } },
    { type: "ping" },
  ];
  let index = 0;
  const block = (content_block: object, deltas: readonly object[]): void => {
    events.push({ type: "content_block_start", index, content_block });
    for (const delta of deltas) events.push({ type: "content_block_delta", index, delta });
    events.push({ type: "content_block_stop", index });
    index += 1;
  };
  if (reasoning !== undefined) {
    block({ type: "thinking", thinking: "", signature: "" }, [
      ...pieces(reasoning).map((thinking) => ({ type: "thinking_delta", thinking })),
      { type: "signature_delta", signature: "own" },
    ]);
  }
  if (content !== undefined) {
    const deltas = pieces(content).map((text) => ({ type: "text_delta", text }));
    block({ type: "text", text: "" }, deltas);
  }
  for (const { id, name, arguments: input } of toolCalls) {
    const deltas = pieces(input).map((partial_json) => ({
      type: "input_json_delta",
      partial_json,
    }));
    block({ type: "tool_use", id, name, input: {} }, deltas);
  }
  const delta = {
    stop_reason: toolCalls.length > 0 ? "tool_use" : "end_turn",
    stop_sequence: null,
  };
  return [
    ...events,
    { type: "message_delta", delta, usage: messagesUsage(options) },
    { type: "message_stop" },
  ];
}

type Item = { readonly id: string; readonly type: string; readonly [member: string]: unknown };
type Response = { readonly output: readonly Item[]; readonly [member: string]: unknown };

function response(request: EngineRequest, options: OwnDialectOptions): Response {
  const { usage } = options;
  return {
    id: "resp_own",
    object: "response",
    created_at: 1_700_000_000,
    status: "completed",
    model: request.json["model"],
    output: outputItems(options.answer(request)),
    usage: {
      input_tokens: usage.promptTokens,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: usage.completionTokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: usage.promptTokens + usage.completionTokens,
    },
    error: null,
    incomplete_details: null,
  };
}

function outputItems({ reasoning, content, toolCalls = [] }: EngineAnswer): Item[] {
  const status = "completed";
  return [
    ...(reasoning === undefined
      ? []
      : [
          {
            id: "rs_own",
            type: "reasoning",
            summary: [],
            content: [{ type: "reasoning_text", text: reasoning }],
            status,
          },
        ]),
    ...(content === undefined
      ? []
      : [
          {
            id: "msg_own",
            type: "message",
            status,
            role: "assistant",
            content: [{ type: "output_text", text: content, annotations: [], logprobs: [] }],
          },
        ]),
    ...toolCalls.map(({ id, name, arguments: args }, index) => ({
      id: `fc_own_${index}`,
      type: "function_call",
      status,
      call_id: id,
      name,
      arguments: args,
    })),
  ];
}

function responseEvents(whole: Response, answer: EngineAnswer): Event[] {
  const events: Event[] = [];
  const send = (type: string, members: object): void => {
    events.push({ type, sequence_number: events.length, ...members });
  };
  const begun = { ...whole, status: "in_progress", output: [], usage: null };
  send("response.created", { response: begun });
  send("response.in_progress", { response: begun });
  for (const [output_index, item] of whole.output.entries()) {
    const empty = item.type === "function_call" ? { arguments: "" } : { content: [] };
    const place = { item_id: item.id, output_index };
    send("response.output_item.added", {
      output_index,
      item: { ...item, ...empty, status: "in_progress" },
    });
    if (item.type === "function_call") {
      const args = String(item["arguments"]);
      for (const delta of pieces(args)) {
        send("response.function_call_arguments.delta", { ...place, delta });
      }
      send("response.function_call_arguments.done", {
        ...place,
        name: item["name"],
        arguments: args,
      });
    } else sendText(send, place, item.type, answer);
    send("response.output_item.done", { output_index, item });
  }
  send("response.completed", { response: whole });
  return events;
}

function sendText(
  send: (type: string, members: object) => void,
  place: object,
  kind: string,
  { reasoning = "", content = "" }: EngineAnswer,
): void {
  const isMessage = kind === "message";
  const text = isMessage ? content : reasoning;
  const name = `response.${isMessage ? "output_text" : "reasoning_text"}`;
  const at = { ...place, content_index: 0 };
  const extra = isMessage ? { logprobs: [] } : {};
  const part = (said: string): object =>
    isMessage
      ? { type: "output_text", text: said, annotations: [], logprobs: [] }
      : { type: "reasoning_text", text: said };
  send("response.content_part.added", { ...at, part: part("") });
  for (const delta of pieces(text)) send(`${name}.delta`, { ...at, delta, ...extra });
  send(`${name}.done`, { ...at, text, ...extra });
  send("response.content_part.done", { ...at, part: part(text) });
}
