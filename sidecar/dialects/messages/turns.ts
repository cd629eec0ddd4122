import {
  asArray,
  asRecord,
  asString,
  asText,
  type JsonRecord,
  type JsonValue,
} from "../json-value.ts";
import { stringifyJson } from "../stringify-json.ts";

/** What the translation of messages needs beside them. */
export interface TurnContext {
  readonly midConversationSystemRole: "system" | "user";
  /** JSON text of each `tool_use` input, by `message.block` (see `toolInputTexts`). */
  readonly inputTexts: ReadonlyMap<string, string>;
  readonly dropped: Set<string>;
}

/** Between the blocks of a system prompt, and the text parts of a tool result. */
export const blockJoiner = "\n\n";
/** Chat tool messages have no error flag. */
export const toolErrorPrefix = "Error: ";
/** Claude Code's billing block differs from call to call and would spoil every prefix. */
const billingPrefix = "x-anthropic-billing-header:";

/** Text of a system prompt, given as a string or as blocks. */
export function systemText(
  content: JsonValue | undefined,
  path: string,
  dropped: Set<string>,
): string {
  const texts: string[] = [];
  for (const [index, block] of toBlocks(content).entries()) {
    const text = asText(block["text"]);
    noteCacheControl(block, dropped);
    if (text?.startsWith(billingPrefix)) dropped.add(`${path}[${index}] (billing header)`);
    else if (text !== undefined) texts.push(text);
    else if (block["type"] !== "text") dropped.add(`${path}[${index}] (${kindOf(block)})`);
  }
  return texts.join(blockJoiner);
}

/** One message of the Messages API as the chat messages that say the same, in their order. */
export function translateTurn(
  message: JsonRecord,
  position: number,
  context: TurnContext,
): JsonRecord[] {
  const path = `messages[${position}]`;
  switch (asText(message["role"]) ?? "") {
    case "system": {
      const content = systemText(message["content"], `${path}.content`, context.dropped);
      return content === "" ? [] : [{ role: context.midConversationSystemRole, content }];
    }
    case "user":
      return translateUser(toBlocks(message["content"]), path, context);
    case "assistant":
      return [translateAssistant(toBlocks(message["content"]), position, context)];
    default:
      context.dropped.add(`${path} (role ${JSON.stringify(message["role"] ?? null)})`);
      return [];
  }
}

/** Tool results come first: chat templates want them right after the calls that they answer. */
function translateUser(
  blocks: readonly JsonRecord[],
  path: string,
  context: TurnContext,
): JsonRecord[] {
  const results: JsonRecord[] = [];
  const parts: JsonRecord[] = [];
  const resultParts: JsonRecord[] = [];
  for (const [index, block] of blocks.entries()) {
    noteCacheControl(block, context.dropped);
    const at = `${path}.content[${index}]`;
    if (block["type"] === "tool_result") {
      results.push(translateToolResult(block, at, resultParts, context));
    } else {
      const part = translatePart(block);
      if (part === undefined) context.dropped.add(`${at} (${kindOf(block)})`);
      else parts.push(part);
    }
  }
  const content = [...resultParts, ...parts];
  if (content.length > 0) results.push({ role: "user", content: collapse(content) });
  else if (results.length === 0) results.push({ role: "user", content: "" });
  return results;
}

function translateToolResult(
  block: JsonRecord,
  path: string,
  resultParts: JsonRecord[],
  context: TurnContext,
): JsonRecord {
  const texts: string[] = [];
  for (const [index, inner] of toBlocks(block["content"]).entries()) {
    noteCacheControl(inner, context.dropped);
    const part = translatePart(inner);
    const text = asString(part?.["text"]);
    if (part === undefined) context.dropped.add(`${path}.content[${index}] (${kindOf(inner)})`);
    else if (text === undefined) resultParts.push(part);
    else texts.push(text);
  }
  const content = texts.join(blockJoiner);
  return {
    role: "tool",
    tool_call_id: asString(block["tool_use_id"]) ?? "",
    content: block["is_error"] === true ? toolErrorPrefix + content : content,
  };
}

function translateAssistant(
  blocks: readonly JsonRecord[],
  position: number,
  context: TurnContext,
): JsonRecord {
  let text = "";
  let reasoning = "";
  const calls: JsonRecord[] = [];
  for (const [index, block] of blocks.entries()) {
    noteCacheControl(block, context.dropped);
    if (block["type"] === "text") text += asText(block["text"]) ?? "";
    else if (block["type"] === "thinking") reasoning += asText(block["thinking"]) ?? "";
    else if (block["type"] === "tool_use") {
      const input = context.inputTexts.get(`${position}.${index}`);
      const args = input ?? stringifyJson(block["input"] ?? {}) ?? "{}";
      const called = { name: asText(block["name"]) ?? "", arguments: args };
      calls.push({ id: asText(block["id"]) ?? "", type: "function", function: called });
    } else context.dropped.add(`messages[${position}].content[${index}] (${kindOf(block)})`);
  }
  return {
    role: "assistant",
    content: text === "" && calls.length > 0 ? null : text,
    ...(reasoning === "" ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** Text and images as chat content parts; undefined for what chat cannot say. */
function translatePart(block: JsonRecord): JsonRecord | undefined {
  const text = asString(block["text"]);
  if (block["type"] === "text" && text !== undefined) return { type: "text", text };
  const source = asRecord(block["source"]);
  if (block["type"] === "document" && source?.["type"] === "text") {
    return { type: "text", text: asString(source["data"]) ?? "" };
  }
  if (block["type"] !== "image" || source === undefined) return undefined;
  const url =
    source["type"] === "base64"
      ? `data:${asText(source["media_type"]) ?? "image/png"};base64,${asString(source["data"]) ?? ""}`
      : asText(source["url"]);
  return url === undefined ? undefined : { type: "image_url", image_url: { url } };
}

function toBlocks(content: JsonValue | undefined): JsonRecord[] {
  if (typeof content === "string") return content === "" ? [] : [{ type: "text", text: content }];
  return (asArray(content) ?? []).map((block) => {
    if (typeof block === "string") return { type: "text", text: block };
    return asRecord(block) ?? {};
  });
}

/** A single text is a string: what templates of text-only models expect. */
function collapse(parts: readonly JsonRecord[]): JsonValue {
  const [only] = parts;
  return parts.length === 1 && only?.["type"] === "text" ? (only["text"] ?? "") : parts;
}

function kindOf(block: JsonRecord): string {
  return asText(block["type"]) ?? "no block";
}

function noteCacheControl(block: JsonRecord, dropped: Set<string>): void {
  if (block["cache_control"] !== undefined) dropped.add("cache_control");
}
