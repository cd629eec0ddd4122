import {
  asArray,
  asRecord,
  asString,
  asText,
  type JsonRecord,
  type JsonValue,
} from "../json-value.ts";
import { decodeReasoning } from "./sealed-reasoning.ts";
import { flatToolName } from "./tools.ts";

export interface ItemSettings {
  readonly developerRole: "system" | "developer";
  readonly midConversationSystemRole: "system" | "user";
  readonly dropped: Set<string>;
}

/** Between the text parts of an instruction and of a tool's output. */
export const partJoiner = "\n\n";

interface Assistant {
  content: string | undefined;
  reasoning: string;
  readonly toolCalls: JsonRecord[];
}

interface State {
  readonly settings: ItemSettings;
  readonly messages: JsonRecord[];
  /** What becomes one assistant message: reasoning, then text, then calls. */
  assistant: Assistant | undefined;
  /** Images in tool outputs; chat tool messages are text, so they follow in a user message. */
  outputParts: JsonRecord[];
}

/** The `input` of a Responses request as chat messages, after `leading` ones. */
export function translateItems(
  input: JsonValue | undefined,
  leading: readonly JsonRecord[],
  settings: ItemSettings,
): JsonRecord[] {
  const messages = [...leading];
  const state: State = { settings, messages, assistant: undefined, outputParts: [] };
  if (typeof input === "string") messages.push({ role: "user", content: input });
  for (const [index, entry] of (asArray(input) ?? []).entries()) {
    addItem(state, asRecord(entry) ?? {}, `input[${index}]`);
  }
  flushAssistant(state);
  flushOutputParts(state);
  return messages;
}

function addItem(state: State, item: JsonRecord, path: string): void {
  const kind = asText(item["type"]) ?? (asText(item["role"]) === undefined ? "no item" : "message");
  switch (kind) {
    case "message":
      addMessage(state, item, path);
      break;
    case "reasoning":
      addReasoning(state, item, path);
      break;
    case "function_call":
      addCall(state, item, asString(item["arguments"]) ?? "");
      break;
    case "custom_tool_call":
      addCall(state, item, JSON.stringify({ input: asString(item["input"]) ?? "" }));
      break;
    case "function_call_output":
    case "custom_tool_call_output":
      addOutput(state, item, path);
      break;
    default:
      state.settings.dropped.add(`${path} (${kind})`);
  }
}

function addMessage(state: State, item: JsonRecord, path: string): void {
  const role = asText(item["role"]) ?? "user";
  const parts = translateParts(item["content"], path, state.settings.dropped);
  if (role === "assistant") {
    const { assistant } = state;
    if (assistant?.content !== undefined || (assistant?.toolCalls.length ?? 0) > 0) {
      flushAssistant(state);
    }
    openAssistant(state).content = joinText(parts, "");
    return;
  }
  flushAssistant(state);
  flushOutputParts(state);
  if (role === "user") state.messages.push({ role, content: collapse(parts) });
  else if (role === "system" || role === "developer") {
    const isLeading = state.messages.every((message) => message["role"] !== "user");
    const leadingRole = role === "developer" ? state.settings.developerRole : "system";
    state.messages.push({
      role: isLeading ? leadingRole : state.settings.midConversationSystemRole,
      content: joinText(parts, partJoiner),
    });
  } else state.settings.dropped.add(`${path} (role ${role})`);
}

function addReasoning(state: State, item: JsonRecord, path: string): void {
  const written = (asArray(item["content"]) ?? [])
    .map((part) => asText(asRecord(part)?.["text"]) ?? "")
    .join("");
  const text = written === "" ? decodeReasoning(item["encrypted_content"]) : written;
  if (text === undefined) {
    state.settings.dropped.add(`${path} (reasoning of another model)`);
    return;
  }
  const { assistant } = state;
  if (assistant?.content !== undefined || (assistant?.toolCalls.length ?? 0) > 0) {
    flushAssistant(state);
  }
  openAssistant(state).reasoning += text;
}

function addCall(state: State, item: JsonRecord, args: string): void {
  const name = flatToolName(asText(item["name"]) ?? "", asText(item["namespace"]));
  const id = asText(item["call_id"]) ?? asText(item["id"]) ?? "";
  const call = { id, type: "function", function: { name, arguments: args } };
  openAssistant(state).toolCalls.push(call);
}

function addOutput(state: State, item: JsonRecord, path: string): void {
  flushAssistant(state);
  const parts = translateParts(item["output"], path, state.settings.dropped);
  state.outputParts.push(...parts.filter((part) => part["type"] !== "text"));
  state.messages.push({
    role: "tool",
    tool_call_id: asText(item["call_id"]) ?? "",
    content: joinText(parts, partJoiner),
  });
}

function openAssistant(state: State): Assistant {
  flushOutputParts(state);
  state.assistant ??= { content: undefined, reasoning: "", toolCalls: [] };
  return state.assistant;
}

function flushAssistant(state: State): void {
  const { assistant } = state;
  if (assistant === undefined) return;
  state.assistant = undefined;
  const { content, reasoning, toolCalls } = assistant;
  state.messages.push({
    role: "assistant",
    content: content ?? (toolCalls.length > 0 ? null : ""),
    ...(reasoning === "" ? {} : { reasoning_content: reasoning }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  });
}

function flushOutputParts(state: State): void {
  const parts = state.outputParts.splice(0);
  if (parts.length > 0) state.messages.push({ role: "user", content: parts });
}

/** Content (a string or parts) as chat content parts. */
function translateParts(
  content: JsonValue | undefined,
  path: string,
  dropped: Set<string>,
): JsonRecord[] {
  if (typeof content === "string") return [{ type: "text", text: content }];
  return (asArray(content) ?? []).flatMap((entry, index): JsonRecord[] => {
    const part = asRecord(entry) ?? {};
    const text = asString(part["text"]) ?? asString(part["refusal"]);
    if (text !== undefined) return [{ type: "text", text }];
    const url = asText(part["image_url"]);
    if (part["type"] === "input_image" && url !== undefined) {
      const detail = asText(part["detail"]);
      return [
        { type: "image_url", image_url: { url, ...(detail === undefined ? {} : { detail }) } },
      ];
    }
    dropped.add(`${path}.content[${index}] (${asText(part["type"]) ?? "no part"})`);
    return [];
  });
}

function joinText(parts: readonly JsonRecord[], joiner: string): string {
  return parts.flatMap((part) => asString(part["text"]) ?? []).join(joiner);
}

/** A single text is a string: what templates of text-only models expect. */
function collapse(parts: readonly JsonRecord[]): JsonValue {
  if (parts.length === 0) return "";
  const [only] = parts;
  return parts.length === 1 && only?.["type"] === "text" ? (only["text"] ?? "") : parts;
}
