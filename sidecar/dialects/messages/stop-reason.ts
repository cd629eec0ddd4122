export interface StopFacts {
  /** Of the engine, e.g. `stop`. */
  readonly finishReason: string;
  /** The stop string that the engine says ended the response. */
  readonly stopString: string | undefined;
  readonly stopSequences: readonly string[];
  readonly hasToolBlock: boolean;
  /** Every tool call's arguments are JSON. */
  readonly areArgumentsWhole: boolean;
}

export interface MessagesStop {
  readonly stop_reason: string;
  readonly stop_sequence: string | null;
}

/** The Messages API's stop reason, from what really was emitted rather than what the engine says. */
export function messagesStopReason(facts: StopFacts): MessagesStop {
  const { stopString, hasToolBlock } = facts;
  if (facts.finishReason === "length") return plain("max_tokens");
  if (facts.finishReason === "content_filter") return plain("refusal");
  if (stopString !== undefined && facts.stopSequences.includes(stopString)) {
    return { stop_reason: "stop_sequence", stop_sequence: stopString };
  }
  const isToolFinish =
    facts.finishReason === "tool_calls" || facts.finishReason === "function_call";
  // Cut-off arguments under `tool_calls`: some engines report that instead of `length`.
  if (isToolFinish && hasToolBlock && !facts.areArgumentsWhole) return plain("max_tokens");
  const mayBeTool = isToolFinish || facts.finishReason === "stop";
  return plain(mayBeTool && hasToolBlock ? "tool_use" : "end_turn");
}

function plain(stop_reason: string): MessagesStop {
  return { stop_reason, stop_sequence: null };
}
