import type { PolicyTokenizer } from "../model/policy-tokenizer.ts";
import type { ToolCall } from "../tool-calls/parse-tool-call.ts";
import type { ChatRequest } from "./chat-request.ts";
import type { ChoiceDelta, ChoiceEnd } from "./choice.ts";
import { chatLogprob, type ResponseHead, usageOf } from "./response-parts.ts";
import type { FinishedChoices } from "./run-choices.ts";

export interface ChatResponseContext {
  readonly head: ResponseHead;
  readonly request: ChatRequest;
  readonly promptIds: Int32Array;
  readonly tokenizer: PolicyTokenizer;
  readonly newToolCallId: () => string;
}

const toolCallJson = (call: ToolCall, id: string) => ({
  id,
  type: "function",
  function: { name: call.name, arguments: call.arguments },
});

/** The whole response, fields as vLLM has them plus `policy_versions` beside `token_ids`. */
export function chatCompletion(context: ChatResponseContext, finished: FinishedChoices) {
  const { head, request, promptIds, tokenizer } = context;
  let completionTokens = 0;
  const choices = finished.choices.map(({ choice, end }, index) => {
    completionTokens += choice.tokens.length;
    const hasCalls = choice.calls.length > 0;
    return {
      index,
      message: {
        role: "assistant",
        content: hasCalls && choice.text === "" ? null : choice.text,
        ...(hasCalls
          ? { tool_calls: choice.calls.map((c) => toolCallJson(c, context.newToolCallId())) }
          : {}),
      },
      logprobs: request.returnsLogprobs
        ? { content: choice.tokens.map((t) => chatLogprob(tokenizer, t)) }
        : null,
      finish_reason: end.finishReason,
      stop_reason: end.stopReason,
      ...(request.returnsTokenIds
        ? { token_ids: choice.tokens.map((t) => t.id), policy_versions: choice.versions }
        : {}),
    };
  });
  return {
    id: head.id,
    object: "chat.completion",
    created: head.created,
    model: head.model,
    choices,
    usage: usageOf(promptIds.length, completionTokens, finished.cachedTokenCount),
    ...(request.returnsTokenIds ? { prompt_token_ids: Array.from(promptIds) } : {}),
  };
}

/** Chunks of one streamed response; `undefined` where there is nothing to send. */
export function createChatChunks(context: ChatResponseContext) {
  const { head, request, promptIds, tokenizer } = context;
  const callCounts = new Map<number, number>();
  const chunk = (choices: readonly unknown[], more: Record<string, unknown> = {}) => ({
    id: head.id,
    object: "chat.completion.chunk",
    created: head.created,
    model: head.model,
    choices,
    ...more,
  });
  const delta = (index: number, { tokens, pieces }: ChoiceDelta) => {
    const showsTokens = tokens.length > 0 && (request.returnsTokenIds || request.returnsLogprobs);
    if (pieces.length === 0 && !showsTokens) return undefined;
    const text = pieces.flatMap((p) => (p.kind === "text" ? [p.text] : [])).join("");
    const calls = pieces.flatMap((p) => (p.kind === "call" ? [p.call] : []));
    const firstCall = callCounts.get(index) ?? 0;
    callCounts.set(index, firstCall + calls.length);
    return chunk([
      {
        index,
        delta: {
          ...(text === "" ? {} : { content: text }),
          ...(calls.length === 0
            ? {}
            : {
                tool_calls: calls.map((call, i) => ({
                  index: firstCall + i,
                  ...toolCallJson(call, context.newToolCallId()),
                })),
              }),
        },
        logprobs:
          request.returnsLogprobs && tokens.length > 0
            ? { content: tokens.map((t) => chatLogprob(tokenizer, t)) }
            : null,
        finish_reason: null,
        ...(request.returnsTokenIds && tokens.length > 0
          ? { token_ids: tokens.map((t) => t.id) }
          : {}),
      },
    ]);
  };
  return {
    first: () =>
      chunk(
        Array.from({ length: request.choiceCount }, (_, index) => ({
          index,
          delta: { role: "assistant", content: "" },
          logprobs: null,
          finish_reason: null,
        })),
        request.returnsTokenIds ? { prompt_token_ids: Array.from(promptIds) } : {},
      ),
    delta,
    end: (index: number, end: ChoiceEnd, versions: unknown) =>
      chunk([
        {
          index,
          delta: {},
          logprobs: null,
          finish_reason: end.finishReason,
          stop_reason: end.stopReason,
          ...(request.returnsTokenIds ? { policy_versions: versions } : {}),
        },
      ]),
    usage: (finished: FinishedChoices) =>
      chunk([], {
        usage: usageOf(
          promptIds.length,
          finished.choices.reduce((sum, { choice }) => sum + choice.tokens.length, 0),
          finished.cachedTokenCount,
        ),
      }),
  };
}
