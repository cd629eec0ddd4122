import type { ChatBody } from "../finish-translation.ts";
import { asArray, asRecord, asText, type JsonRecord, type JsonValue } from "../json-value.ts";

/**
 * `tools` and `tool_choice` of the Messages API as chat completions has them. Tools that run on
 * Anthropic's servers have no schema and no counterpart: dropped and recorded.
 */
export function translateTools(request: JsonRecord, dropped: Set<string>): ChatBody {
  const tools: JsonValue[] = [];
  for (const [index, entry] of (asArray(request["tools"]) ?? []).entries()) {
    const tool = asRecord(entry);
    const schema = asRecord(tool?.["input_schema"]);
    const name = asText(tool?.["name"]);
    if (tool === undefined || schema === undefined || name === undefined) {
      dropped.add(`tools[${index}] (${asText(tool?.["type"]) ?? name ?? "no tool"})`);
      continue;
    }
    const description = asText(tool["description"]);
    tools.push({
      type: "function",
      function: { name, ...(description === undefined ? {} : { description }), parameters: schema },
    });
  }
  if (tools.length === 0) return {};
  return { tools, ...translateToolChoice(asRecord(request["tool_choice"]), dropped) };
}

const choices: Readonly<Record<string, string>> = { auto: "auto", any: "required", none: "none" };

function translateToolChoice(choice: JsonRecord | undefined, dropped: Set<string>): ChatBody {
  if (choice === undefined) return {};
  const kind = asText(choice["type"]) ?? "";
  const name = asText(choice["name"]);
  const parallel: ChatBody =
    choice["disable_parallel_tool_use"] === true ? { parallel_tool_calls: false } : {};
  if (kind === "tool" && name !== undefined) {
    return { tool_choice: { type: "function", function: { name } }, ...parallel };
  }
  const plain = Object.hasOwn(choices, kind) ? choices[kind] : undefined;
  if (plain === undefined) dropped.add(`tool_choice (${kind})`);
  return { ...(plain === undefined ? {} : { tool_choice: plain }), ...parallel };
}
