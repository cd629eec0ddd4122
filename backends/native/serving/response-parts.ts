import type { PolicyTokenizer } from "../model/policy-tokenizer.ts";
import type { SampledToken } from "./policy-engine.ts";
import type { TokenLogprob } from "./sample-token.ts";

/** What every object of one response repeats. */
export interface ResponseHead {
  readonly id: string;
  /** Seconds since the epoch. */
  readonly created: number;
  readonly model: string;
}

const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

const tokenText = (tokenizer: PolicyTokenizer, id: number): string =>
  utf8.decode(tokenizer.bytesOf(id));

/** One entry of `logprobs.content` of the chat API; special tokens are shown as they are named. */
export function chatLogprob(tokenizer: PolicyTokenizer, token: SampledToken) {
  const entry = ({ id, logprob }: TokenLogprob) => ({
    token: tokenText(tokenizer, id),
    logprob,
    bytes: Array.from(tokenizer.bytesOf(id)),
  });
  return { ...entry(token), top_logprobs: token.top.map(entry) };
}

/** The flat form of the completions API; `offset` is where the first token's text starts. */
export function completionLogprobs(
  tokenizer: PolicyTokenizer,
  tokens: readonly SampledToken[],
  offset: number,
) {
  const texts = tokens.map((token) => tokenText(tokenizer, token.id));
  let at = offset;
  return {
    text_offset: texts.map((text) => {
      const start = at;
      at += text.length;
      return start;
    }),
    token_logprobs: tokens.map((token) => token.logprob),
    tokens: texts,
    top_logprobs: tokens.map((token) =>
      Object.fromEntries(token.top.map((t) => [tokenText(tokenizer, t.id), t.logprob])),
    ),
  };
}

export const usageOf = (promptTokens: number, completionTokens: number, cachedTokens: number) => ({
  prompt_tokens: promptTokens,
  total_tokens: promptTokens + completionTokens,
  completion_tokens: completionTokens,
  prompt_tokens_details: { cached_tokens: cachedTokens },
});
