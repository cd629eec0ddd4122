import type { RequestSettings } from "../dialect.ts";
import { encodeEvent } from "../encode-event.ts";
import type { JsonRecord } from "../json-value.ts";
import type { ChunkParts } from "../read-chunk.ts";
import {
  createToolCallTracker,
  type ToolCallTracker,
  type TrackedCall,
} from "../tool-call-tracker.ts";
import { uniqueId } from "../unique-id.ts";
import type { ResponsesError } from "./error-body.ts";
import { customInput, describeItem, type ItemStatus, type OutputItem } from "./output-items.ts";
import type { ToolTargets } from "./tools.ts";
import { responsesUsage } from "./usage.ts";

export interface ResponseBuilderSettings extends Pick<RequestSettings, "newId" | "nowMs"> {
  readonly model: string | null;
  readonly targets: ToolTargets;
  readonly sealsReasoning: boolean;
  readonly parallelToolCalls: boolean;
}

/** A response while it grows, and the events that tell of it. */
export interface ResponseBuilder {
  readonly settings: ResponseBuilderSettings;
  readonly emit: (event: string) => void;
  readonly id: string;
  readonly createdAt: number;
  readonly items: OutputItem[];
  readonly calls: ToolCallTracker;
  readonly takenIds: Set<string>;
  sequenceNumber: number;
  isStarted: boolean;
}

type ContentItem = Exclude<OutputItem, { kind: "call" }>;
type CallItem = Extract<OutputItem, { kind: "call" }>;

export function newResponseBuilder(
  settings: ResponseBuilderSettings,
  emit: (event: string) => void,
): ResponseBuilder {
  return {
    settings,
    emit,
    id: settings.newId("resp_"),
    createdAt: Math.floor(settings.nowMs() / 1000),
    items: [],
    calls: createToolCallTracker(),
    takenIds: new Set(),
    sequenceNumber: 0,
    isStarted: false,
  };
}

/** R1: what opens every stream, also one that only fails. */
export function startResponse(builder: ResponseBuilder): void {
  if (builder.isStarted) return;
  builder.isStarted = true;
  const response = describeResponse(builder, "in_progress", {});
  send(builder, "response.created", { response });
  send(builder, "response.in_progress", { response });
}

/** R9: Codex counts events with data, not comments, as signs of life. */
export function repeatInProgress(builder: ResponseBuilder): void {
  if (!builder.isStarted) startResponse(builder);
  else {
    const response = describeResponse(builder, "in_progress", {});
    send(builder, "response.in_progress", { response });
  }
}

export function addParts(builder: ResponseBuilder, parts: ChunkParts): void {
  if (parts.reasoning !== "") addText(builder, "reasoning", parts.reasoning);
  if (parts.content !== "") addText(builder, "message", parts.content);
  for (const [position, fragment] of parts.toolCalls.entries()) {
    const call = builder.calls.add(fragment, position)?.call;
    if (call !== undefined && call.name !== "") showCall(builder, call);
  }
}

/** R6, R7: closes what is open and ends the response. Returns the whole response. */
export function finishResponse(
  builder: ResponseBuilder,
  finishReason: string,
  usage: JsonRecord | undefined,
): JsonRecord {
  const reason = incompleteReasons.get(finishReason);
  const status = reason === undefined ? "completed" : "incomplete";
  for (const item of builder.items) closeItem(builder, item, status);
  const output = builder.items.map((item) =>
    describeItem(item, status, builder.settings.sealsReasoning),
  );
  const response = describeResponse(builder, status, {
    output,
    usage: responsesUsage(usage),
    incomplete_details: reason === undefined ? null : { reason },
    completed_at: Math.floor(builder.settings.nowMs() / 1000),
  });
  send(builder, `response.${status}`, { response });
  return response;
}

/** R8. */
export function failResponse(builder: ResponseBuilder, error: ResponsesError): void {
  startResponse(builder);
  const response = describeResponse(builder, "failed", { error: { ...error } });
  send(builder, "response.failed", { response });
}

const incompleteReasons: ReadonlyMap<string, string> = new Map([
  ["length", "max_output_tokens"],
  ["content_filter", "content_filter"],
]);

function send(builder: ResponseBuilder, type: string, fields: JsonRecord): void {
  builder.emit(encodeEvent({ type, sequence_number: builder.sequenceNumber, ...fields }));
  builder.sequenceNumber += 1;
}

function describeResponse(
  builder: ResponseBuilder,
  status: string,
  fields: JsonRecord,
): JsonRecord {
  return {
    id: builder.id,
    object: "response",
    created_at: builder.createdAt,
    status,
    model: builder.settings.model ?? "",
    output: [],
    usage: null,
    error: null,
    incomplete_details: null,
    instructions: null,
    metadata: {},
    parallel_tool_calls: builder.settings.parallelToolCalls,
    previous_response_id: null,
    temperature: null,
    tool_choice: "auto",
    tools: [],
    top_p: null,
    ...fields,
  };
}

/** R2, R3. A message stays open to the end; reasoning ends where something else begins. */
function addText(builder: ResponseBuilder, kind: ContentItem["kind"], text: string): void {
  if (kind === "message") closeReasoning(builder);
  let item = builder.items.find(
    (other): other is ContentItem => other.kind === kind && !other.isDone,
  );
  if (item === undefined) {
    const id = builder.settings.newId(kind === "message" ? "msg_" : "rs_");
    item = { kind, id, outputIndex: builder.items.length, texts: [], isDone: false };
    openItem(builder, item);
    send(builder, "response.content_part.added", { ...partPlace(item), part: part(item, "") });
  }
  item.texts.push(text);
  const logprobs = kind === "message" ? { logprobs: [] } : {};
  send(builder, `${textEvent(kind)}.delta`, { ...partPlace(item), delta: text, ...logprobs });
}

/** R4, R5. Calls may be open at the same time: each has its own output index. */
function showCall(builder: ResponseBuilder, call: TrackedCall): void {
  closeReasoning(builder);
  let item = builder.items.find(
    (other): other is CallItem => other.kind === "call" && other.call === call,
  );
  if (item === undefined) {
    const { newId, targets } = builder.settings;
    const target = targets.get(call.name) ?? {
      kind: "function" as const,
      name: call.name,
      namespace: undefined,
    };
    const callId = uniqueId(call.id, builder.takenIds, () => newId("call_"));
    const id = newId(target.kind === "custom" ? "ctc_" : "fc_");
    const outputIndex = builder.items.length;
    item = { kind: "call", id, outputIndex, callId, call, target, shownCount: 0, isDone: false };
    openItem(builder, item);
  }
  // A custom tool's input is inside JSON: it is shown when that is whole.
  if (item.target.kind === "custom") return;
  for (const delta of call.fragments.slice(item.shownCount)) {
    send(builder, "response.function_call_arguments.delta", { ...place(item), delta });
  }
  item.shownCount = call.fragments.length;
}

function openItem(builder: ResponseBuilder, item: OutputItem): void {
  builder.items.push(item);
  send(builder, "response.output_item.added", {
    output_index: item.outputIndex,
    item: describeItem(item, "in_progress", false),
  });
}

function closeReasoning(builder: ResponseBuilder): void {
  for (const item of builder.items) {
    if (item.kind === "reasoning") closeItem(builder, item, "completed");
  }
}

function closeItem(
  builder: ResponseBuilder,
  item: OutputItem,
  status: Exclude<ItemStatus, "in_progress">,
): void {
  if (item.isDone) return;
  item.isDone = true;
  if (item.kind === "call") closeCall(builder, item);
  else {
    const text = item.texts.join("");
    const logprobs = item.kind === "message" ? { logprobs: [] } : {};
    send(builder, `${textEvent(item.kind)}.done`, { ...partPlace(item), text, ...logprobs });
    send(builder, "response.content_part.done", { ...partPlace(item), part: part(item, text) });
  }
  send(builder, "response.output_item.done", {
    output_index: item.outputIndex,
    item: describeItem(item, status, builder.settings.sealsReasoning),
  });
}

function closeCall(builder: ResponseBuilder, item: CallItem): void {
  const args = item.call.fragments.join("");
  if (item.target.kind === "custom") {
    const input = customInput(args);
    if (input !== "") {
      send(builder, "response.custom_tool_call_input.delta", { ...place(item), delta: input });
    }
    send(builder, "response.custom_tool_call_input.done", { ...place(item), input });
  } else {
    const { name } = item.target;
    send(builder, "response.function_call_arguments.done", {
      ...place(item),
      name,
      arguments: args,
    });
  }
}

function place(item: OutputItem): JsonRecord {
  return { item_id: item.id, output_index: item.outputIndex };
}

function partPlace(item: OutputItem): JsonRecord {
  return { ...place(item), content_index: 0 };
}

function part(item: ContentItem, text: string): JsonRecord {
  return item.kind === "message"
    ? { type: "output_text", text, annotations: [], logprobs: [] }
    : { type: "reasoning_text", text };
}

function textEvent(kind: ContentItem["kind"]): string {
  return kind === "message" ? "response.output_text" : "response.reasoning_text";
}
