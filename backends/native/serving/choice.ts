import type { PolicyVersionSpan } from "../../../core/call.ts";
import type { PolicyTokenizer } from "../model/policy-tokenizer.ts";
import { createIdTextDecoder } from "../model/text-decoder.ts";
import type { ToolCall } from "../tool-calls/parse-tool-call.ts";
import { createToolCallParser, type ParsedPiece } from "../tool-calls/tool-call-parser.ts";
import type { SampledToken } from "./policy-engine.ts";
import { createStopMatcher } from "./stop-strings.ts";

/** What one sampled token, or the end, adds to a choice. Text may lag behind tokens. */
export interface ChoiceDelta {
  readonly tokens: readonly SampledToken[];
  readonly pieces: readonly ParsedPiece[];
}

export interface ChoiceEnd {
  readonly finishReason: "stop" | "length" | "tool_calls";
  /** The stop string or stop id that ended it; null for the model's own end token. */
  readonly stopReason: string | number | null;
}

/** One choice of a response: sampled tokens in, text and tool calls out. */
export interface Choice {
  readonly tokens: readonly SampledToken[];
  readonly text: string;
  readonly calls: readonly ToolCall[];
  readonly versions: readonly PolicyVersionSpan[];
  /** True ends the sequence; the token belongs to the response either way. */
  accept(token: SampledToken): { readonly delta: ChoiceDelta; readonly isEnded: boolean };
  /** Flushes what was held back. Called once, when the sequence has ended. */
  finish(): { readonly delta: ChoiceDelta; readonly end: ChoiceEnd };
}

export interface ChoiceOptions {
  readonly tokenizer: PolicyTokenizer;
  /** The model's end ids; none where the request ignores them. */
  readonly endIds: ReadonlySet<number>;
  readonly stopIds: ReadonlySet<number>;
  readonly stopStrings: readonly string[];
  readonly parsesToolCalls: boolean;
}

export function createChoice(options: ChoiceOptions): Choice {
  const decoder = createIdTextDecoder(options.tokenizer);
  const stops = createStopMatcher(options.stopStrings);
  const parser = options.parsesToolCalls ? createToolCallParser() : undefined;
  const tokens: SampledToken[] = [];
  const calls: ToolCall[] = [];
  const versions: { version: number; start: number; end: number }[] = [];
  let text = "";
  let stopReason: string | number | null | undefined;

  const parse = (visible: string, isLast: boolean): ParsedPiece[] => {
    const pieces: ParsedPiece[] =
      parser === undefined ? [{ kind: "text", text: visible }] : parser.push(visible);
    if (isLast && parser !== undefined) pieces.push(...parser.end());
    for (const piece of pieces) {
      if (piece.kind === "text") text += piece.text;
      else calls.push(piece.call);
    }
    return pieces.filter((piece) => piece.kind === "call" || piece.text !== "");
  };

  return {
    tokens,
    calls,
    versions,
    get text() {
      return text;
    },
    accept: (token) => {
      tokens.push(token);
      const span = versions.at(-1);
      if (span?.version === token.version) span.end = tokens.length;
      else {
        versions.push({ version: token.version, start: tokens.length - 1, end: tokens.length });
      }
      if (options.endIds.has(token.id)) stopReason = null;
      else if (options.stopIds.has(token.id)) stopReason = token.id;
      if (stopReason !== undefined)
        return { delta: { tokens: [token], pieces: [] }, isEnded: true };
      const { text: visible, matched } = stops.push(decoder.push(token.id));
      if (matched !== undefined) stopReason = matched;
      return {
        delta: { tokens: [token], pieces: parse(visible, false) },
        isEnded: stopReason !== undefined,
      };
    },
    finish: () => {
      const isCut = typeof stopReason === "string";
      let rest = "";
      if (!isCut) {
        // Held-back bytes may complete a stop string only as a replacement character.
        const last = stops.push(decoder.end());
        rest = last.matched === undefined ? last.text + stops.end() : last.text;
        if (last.matched !== undefined) stopReason = last.matched;
      }
      const pieces = parse(rest, true);
      const isStopped = stopReason !== undefined;
      const finishReason = !isStopped ? "length" : calls.length > 0 ? "tool_calls" : "stop";
      return {
        delta: { tokens: [], pieces },
        end: { finishReason, stopReason: stopReason ?? null },
      };
    },
  };
}
