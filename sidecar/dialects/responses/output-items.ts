import { isJson } from "../is-json.ts";
import { asRecord, asString, type JsonRecord } from "../json-value.ts";
import type { TrackedCall } from "../tool-call-tracker.ts";
import { encodeReasoning } from "./sealed-reasoning.ts";
import type { ToolTarget } from "./tools.ts";

export type ItemStatus = "in_progress" | "completed" | "incomplete";

/** One item of a response while it grows. */
export type OutputItem =
  | {
      readonly kind: "reasoning" | "message";
      readonly id: string;
      readonly outputIndex: number;
      readonly texts: string[];
      isDone: boolean;
    }
  | {
      readonly kind: "call";
      readonly id: string;
      readonly outputIndex: number;
      readonly callId: string;
      readonly call: TrackedCall;
      readonly target: ToolTarget;
      /** How many fragments of the call were shown. */
      shownCount: number;
      isDone: boolean;
    };

/** The item as the API shows it: empty while in progress, with everything once it is done. */
export function describeItem(
  item: OutputItem,
  status: ItemStatus,
  sealsReasoning: boolean,
): JsonRecord {
  const isOpen = status === "in_progress";
  if (item.kind === "call") return describeCall(item, status);
  const text = item.texts.join("");
  if (item.kind === "message") {
    const content = isOpen ? [] : [{ type: "output_text", text, annotations: [], logprobs: [] }];
    return { id: item.id, type: "message", status, role: "assistant", content };
  }
  return {
    id: item.id,
    type: "reasoning",
    summary: [],
    content: isOpen ? [] : [{ type: "reasoning_text", text }],
    ...(sealsReasoning && !isOpen ? { encrypted_content: encodeReasoning(text) } : {}),
    status,
  };
}

function describeCall(item: Extract<OutputItem, { kind: "call" }>, status: ItemStatus): JsonRecord {
  const isOpen = status === "in_progress";
  const args = isOpen ? "" : item.call.fragments.join("");
  const { kind, name, namespace } = item.target;
  return {
    id: item.id,
    type: kind === "custom" ? "custom_tool_call" : "function_call",
    status,
    call_id: item.callId,
    name,
    ...(namespace === undefined ? {} : { namespace }),
    ...(kind === "custom" ? { input: isOpen ? "" : customInput(args) } : { arguments: args }),
  };
}

/** The text inside `{"input": text}`; what the model wrote, where it is not that. */
export function customInput(args: string): string {
  if (!isJson(args)) return args;
  return asString(asRecord(JSON.parse(args))?.["input"]) ?? args;
}
