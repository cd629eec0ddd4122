import { fields, list, stringOf, textOf } from "./read-conversation.ts";

type Fields = Readonly<Record<string, unknown>>;

/** One turn of a history, without what harnesses vary between calls that mean the same. */
export interface HistoryTurn {
  readonly role: string;
  readonly text: string;
  readonly calls: readonly { readonly id: string; readonly name: string; readonly input: string }[];
  /** The call that a tool's result answers. */
  readonly answers: string | undefined;
}

/**
 * A request's history for comparison with another's: content as string or as one part is the same,
 * null content is empty, cache marks, item ids and billing blocks are nothing. Tells a harness's
 * author whether its prompts extend each other; training compares token ids, never this.
 */
export function normalizeHistory(body: unknown): HistoryTurn[] {
  const request = fields(body);
  const leading = [request["system"], request["instructions"]]
    .map(systemText)
    .filter((text) => text !== "")
    .map((text) => turn("system", text));
  const messages = list(request["messages"]).flatMap((message) => readMessage(fields(message)));
  const input = request["input"];
  const items =
    typeof input === "string"
      ? [turn("user", input)]
      : list(input).flatMap((item) => readItem(fields(item)));
  return [...leading, ...messages, ...items];
}

/** How many leading turns two histories share; all of `earlier` when the later one extends it. */
export function sharedTurnCount(
  earlier: readonly HistoryTurn[],
  later: readonly HistoryTurn[],
): number {
  const key = (value: HistoryTurn | undefined) => JSON.stringify(value);
  const first = earlier.findIndex((value, index) => key(value) !== key(later[index]));
  return first === -1 ? earlier.length : first;
}

function turn(role: string, text: string, more: Partial<HistoryTurn> = {}): HistoryTurn {
  return { role, text, calls: [], answers: undefined, ...more };
}

function systemText(content: unknown): string {
  if (typeof content === "string") return content;
  const blocks = list(content).filter(
    (block) => !textOf([block]).startsWith("x-anthropic-billing-header:"),
  );
  return textOf(blocks);
}

/** Chat and Messages: tool results may be messages of their own or parts of a user's. */
function readMessage(message: Fields): HistoryTurn[] {
  const role = stringOf(message["role"]);
  const content = message["content"];
  if (role === "tool") {
    return [turn(role, textOf(content), { answers: stringOf(message["tool_call_id"]) })];
  }
  const blocks = list(content).map(fields);
  const results = blocks.filter((block) => block["type"] === "tool_result");
  const rest = blocks.filter((block) => block["type"] !== "tool_result");
  const calls = [
    ...rest.filter((block) => block["type"] === "tool_use").map(readToolUse),
    ...list(message["tool_calls"]).map((call) => readChatCall(fields(call))),
  ];
  const text = role === "system" ? systemText(content) : textOf(content);
  const answers = results.map((block) =>
    turn("tool", textOf(block["content"]), { answers: stringOf(block["tool_use_id"]) }),
  );
  const isOnlyResults = results.length > 0 && rest.length === 0;
  return isOnlyResults ? answers : [...answers, turn(role, text, { calls })];
}

function readToolUse(block: Fields): HistoryTurn["calls"][number] {
  const { id, name, input } = block;
  return { id: stringOf(id), name: stringOf(name), input: JSON.stringify(input ?? {}) };
}

function readChatCall(call: Fields): HistoryTurn["calls"][number] {
  const called = fields(call["function"]);
  const { name, arguments: input } = called;
  return { id: stringOf(call["id"]), name: stringOf(name), input: stringOf(input) };
}

function readItem(item: Fields): HistoryTurn[] {
  const { type, call_id: callId, name, arguments: args, input, output } = item;
  if (type === "function_call" || type === "custom_tool_call") {
    const call = {
      id: stringOf(callId),
      name: stringOf(name),
      input: stringOf(args ?? input),
    };
    return [turn("assistant", "", { calls: [call] })];
  }
  if (type === "function_call_output" || type === "custom_tool_call_output") {
    return [turn("tool", textOf(output), { answers: stringOf(callId) })];
  }
  if (item["role"] === undefined) return [];
  return [turn(stringOf(item["role"]), textOf(item["content"]))];
}
