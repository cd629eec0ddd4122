import type { ChatBody } from "../finish-translation.ts";
import { asArray, asRecord, asText, type JsonRecord, type JsonValue } from "../json-value.ts";

/** What a function that the engine knows is in the harness's own words. */
export interface ToolTarget {
  readonly kind: "function" | "custom";
  readonly name: string;
  readonly namespace: string | undefined;
}

/** By the name that the engine sees. */
export type ToolTargets = ReadonlyMap<string, ToolTarget>;

/** Engines know no namespaces: `multi_agent_v1` and `spawn_agent` become one name. */
export function flatToolName(name: string, namespace: string | undefined): string {
  return namespace === undefined ? name : `${namespace}__${name}`;
}

/**
 * `tools`, `tool_choice` and `parallel_tool_calls` of the Responses API as chat completions has
 * them: functions as they are, custom tools as functions with one string `input`, namespaces
 * flattened. Tools that run on OpenAI's servers are dropped and recorded.
 */
export function translateTools(
  request: JsonRecord,
  dropped: Set<string>,
): { readonly body: ChatBody; readonly targets: ToolTargets } {
  const targets = new Map<string, ToolTarget>();
  const tools: JsonValue[] = [];
  const add = (value: JsonValue, path: string, namespace: string | undefined): void => {
    const tool = asRecord(value) ?? {};
    const kind = asText(tool["type"]);
    const name = asText(tool["name"]);
    if (kind === "namespace" && name !== undefined && namespace === undefined) {
      for (const [index, member] of (asArray(tool["tools"]) ?? []).entries()) {
        add(member, `${path}.tools[${index}]`, name);
      }
      return;
    }
    const isKnown = name !== undefined && (kind === "function" || kind === "custom");
    const flat = flatToolName(name ?? "", namespace);
    if (!isKnown || targets.has(flat)) {
      dropped.add(`${path} (${isKnown ? `a second ${flat}` : (kind ?? "no tool")})`);
      return;
    }
    targets.set(flat, { kind, name, namespace });
    tools.push({ type: "function", function: { name: flat, ...describeTool(tool, kind) } });
  };
  for (const [index, tool] of (asArray(request["tools"]) ?? []).entries()) {
    add(tool, `tools[${index}]`, undefined);
  }
  if (tools.length === 0) return { body: {}, targets };
  const parallel = request["parallel_tool_calls"];
  const body: ChatBody = {
    tools,
    ...translateToolChoice(request["tool_choice"], dropped),
    ...(typeof parallel === "boolean" ? { parallel_tool_calls: parallel } : {}),
  };
  return { body, targets };
}

function describeTool(tool: JsonRecord, kind: "function" | "custom"): JsonRecord {
  const description = asText(tool["description"]);
  const described = description === undefined ? {} : { description };
  if (kind === "custom") return { ...described, parameters: customParameters(tool) };
  return {
    ...described,
    parameters: asRecord(tool["parameters"]) ?? { type: "object", properties: {} },
    ...(typeof tool["strict"] === "boolean" ? { strict: tool["strict"] } : {}),
  };
}

/** The grammar of a custom tool, where it has one, goes into the description of its input. */
function customParameters(tool: JsonRecord): JsonRecord {
  const format = asRecord(tool["format"]);
  const definition = asText(format?.["definition"]);
  const syntax = asText(format?.["syntax"]) ?? "a";
  const input: JsonRecord =
    definition === undefined
      ? { type: "string" }
      : { type: "string", description: `Text that follows this ${syntax} grammar:\n${definition}` };
  return { type: "object", properties: { input }, required: ["input"] };
}

function translateToolChoice(choice: JsonValue | undefined, dropped: Set<string>): ChatBody {
  if (choice === undefined || choice === null) return {};
  if (choice === "auto" || choice === "none" || choice === "required") {
    return { tool_choice: choice };
  }
  const object = asRecord(choice);
  const kind = asText(object?.["type"]) ?? "unknown";
  const name = asText(object?.["name"]);
  if (name !== undefined && (kind === "function" || kind === "custom")) {
    const flat = flatToolName(name, asText(object?.["namespace"]));
    return { tool_choice: { type: "function", function: { name: flat } } };
  }
  dropped.add(`tool_choice (${kind})`);
  const mode = object?.["mode"];
  return mode === "auto" || mode === "required" ? { tool_choice: mode } : {};
}
