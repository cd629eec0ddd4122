import type { PolicyTokenizer } from "../model/policy-tokenizer.ts";
import type { Choice, ChoiceDelta, ChoiceEnd } from "./choice.ts";
import type { CompletionRequest } from "./completion-request.ts";
import { completionLogprobs, type ResponseHead, usageOf } from "./response-parts.ts";
import type { FinishedChoices } from "./run-choices.ts";

export interface CompletionResponseContext {
  readonly head: ResponseHead;
  readonly request: CompletionRequest;
  readonly tokenizer: PolicyTokenizer;
  /** The ids of each prompt, in order. */
  readonly prompts: readonly Int32Array[];
}

function usage(prompts: readonly Int32Array[], all: readonly FinishedChoices[]) {
  const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);
  return usageOf(
    sum(prompts.map((p) => p.length)),
    sum(all.flatMap((f) => f.choices.map(({ choice }) => choice.tokens.length))),
    sum(all.map((f) => f.cachedTokenCount)),
  );
}

const object = "text_completion";

export function textCompletion(
  { head, request, tokenizer, prompts }: CompletionResponseContext,
  all: readonly FinishedChoices[],
) {
  const choices = all.flatMap((finished, promptIndex) =>
    finished.choices.map(({ choice, end }, i) => ({
      index: promptIndex * request.choiceCount + i,
      text: choice.text,
      logprobs:
        request.logprobs === undefined ? null : completionLogprobs(tokenizer, choice.tokens, 0),
      finish_reason: end.finishReason,
      stop_reason: end.stopReason,
      ...(request.returnsTokenIds
        ? {
            prompt_token_ids: Array.from(prompts[promptIndex] as Int32Array),
            token_ids: choice.tokens.map((t) => t.id),
            policy_versions: choice.versions,
          }
        : {}),
    })),
  );
  return { ...head, object, choices, usage: usage(prompts, all) };
}

/** Chunks of one streamed response; ids of prompt and response are inside the choices. */
export function createCompletionChunks(context: CompletionResponseContext) {
  const { head, request, tokenizer, prompts } = context;
  const offsets = new Map<number, number>();
  const started = new Set<number>();
  const choiceJson = (index: number, more: Record<string, unknown>) => ({
    ...head,
    object,
    choices: [{ index, text: "", logprobs: null, finish_reason: null, ...more }],
  });
  const promptIdsOnce = (index: number) => {
    if (!request.returnsTokenIds || started.has(index)) return {};
    started.add(index);
    const prompt = prompts[Math.floor(index / request.choiceCount)] as Int32Array;
    return { prompt_token_ids: Array.from(prompt) };
  };
  return {
    delta: (index: number, { tokens, pieces }: ChoiceDelta) => {
      const text = pieces.map((p) => (p.kind === "text" ? p.text : "")).join("");
      const showsTokens =
        tokens.length > 0 && (request.returnsTokenIds || request.logprobs !== undefined);
      if (text === "" && !showsTokens) return undefined;
      const offset = offsets.get(index) ?? 0;
      offsets.set(index, offset + text.length);
      return choiceJson(index, {
        text,
        ...(request.logprobs !== undefined && tokens.length > 0
          ? { logprobs: completionLogprobs(tokenizer, tokens, offset) }
          : {}),
        ...promptIdsOnce(index),
        ...(request.returnsTokenIds && tokens.length > 0
          ? { token_ids: tokens.map((t) => t.id) }
          : {}),
      });
    },
    end: (index: number, end: ChoiceEnd, versions: Choice["versions"]) =>
      choiceJson(index, {
        finish_reason: end.finishReason,
        stop_reason: end.stopReason,
        ...promptIdsOnce(index),
        ...(request.returnsTokenIds ? { policy_versions: versions } : {}),
      }),
    usage: (all: readonly FinishedChoices[]) => ({
      ...head,
      object,
      choices: [],
      usage: usage(prompts, all),
    }),
  };
}
