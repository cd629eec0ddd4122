import { heldPrefixLength } from "./held-prefix.ts";
import { parseToolCall, type ToolCall } from "./parse-tool-call.ts";

export type ParsedPiece =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "call"; readonly call: ToolCall };

export interface ToolCallParser {
  push(text: string): ParsedPiece[];
  end(): ParsedPiece[];
}

const open = "<tool_call>";
const close = "</tool_call>";

/**
 * Splits Hermes/Qwen text into plain text and `<tool_call>{"name", "arguments"}</tool_call>` calls,
 * as it is sampled. Total over any text: a block that is no call stays text, character for
 * character, and joined pieces do not depend on how the text was cut. A call appears when its block
 * closes (a half call could not be taken back) or, if the text ends there, when its JSON is whole.
 * The newline that templates print before a call, and white space after one, are not text.
 */
export function createToolCallParser(): ToolCallParser {
  let pending = "";
  /** White space left out before the open block; it comes back when the block is no call. */
  let skipped = "";
  let isInside = false;
  let isAfterCall = false;

  const outside = (pieces: ParsedPiece[], isLast: boolean): boolean => {
    if (isAfterCall) {
      const trimmed = pending.trimStart();
      const isOpening = trimmed.startsWith(open);
      if (!isOpening && (trimmed === "" || open.startsWith(trimmed)) && !isLast) return false;
      if (isOpening || trimmed === "") {
        skipped += pending.slice(0, pending.length - trimmed.length);
        pending = trimmed;
        if (trimmed === "") return false;
      } else isAfterCall = false;
    }
    const at = pending.indexOf(open);
    if (at < 0) {
      const held = isLast
        ? 0
        : Math.max(heldPrefixLength(pending, open), heldPrefixLength(pending, `\n${open}`));
      addText(pieces, pending.slice(0, pending.length - held));
      pending = pending.slice(pending.length - held);
      return false;
    }
    const text = pending.slice(0, at);
    const hasNewline = text.endsWith("\n");
    addText(pieces, hasNewline ? text.slice(0, -1) : text);
    if (hasNewline) skipped = "\n";
    pending = pending.slice(at + open.length);
    isInside = true;
    return true;
  };

  const inside = (pieces: ParsedPiece[], isLast: boolean): boolean => {
    const at = pending.indexOf(close);
    if (at < 0 && !isLast) return false;
    const body = at < 0 ? pending : pending.slice(0, at);
    const closing = at < 0 ? "" : close;
    const call = parseToolCall(body);
    if (call === undefined) addText(pieces, skipped + open + body + closing);
    else pieces.push({ kind: "call", call });
    skipped = "";
    isInside = false;
    isAfterCall = call !== undefined;
    pending = pending.slice(body.length + closing.length);
    return true;
  };

  const drain = (isLast: boolean): ParsedPiece[] => {
    const pieces: ParsedPiece[] = [];
    while (isInside ? inside(pieces, isLast) : outside(pieces, isLast));
    return pieces;
  };
  return {
    push: (text) => {
      pending += text;
      return drain(false);
    },
    end: () => drain(true),
  };
}

function addText(pieces: ParsedPiece[], text: string): void {
  if (text === "") return;
  const last = pieces.at(-1);
  if (last?.kind === "text") pieces[pieces.length - 1] = { kind: "text", text: last.text + text };
  else pieces.push({ kind: "text", text });
}
