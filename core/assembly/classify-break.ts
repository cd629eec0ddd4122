import type { BreakKind } from "../capture-report.ts";

/** Turns ids into text; special tokens must stay visible in it. */
export type DecodeIds = (ids: Int32Array) => string;

/** Tokens of the end of a prompt that the chat template adds only for generation. */
const GENERATION_PROMPT_TOKENS = 8;
/** Longest piece that counts as put in by a template. */
const MAX_INSERTED_TOKENS = 32;
/** A response of fewer tokens is found in a prompt by chance. */
const MIN_QUOTED_TOKENS = 4;

export interface BreakFacts {
  /** Prompt and response of the earlier call. */
  readonly earlierPrompt: Int32Array;
  readonly earlierResponse: Int32Array;
  /** The later call's prompt. */
  readonly prompt: Int32Array;
  /** Number of tokens that the later prompt shares with the earlier context. */
  readonly shared: number;
}

/**
 * Says why a prompt does not go on exactly from an earlier call's context, or null where it simply
 * is another conversation or another branch.
 *
 * - `re-tokenisation`: the text is equal, the ids are not (needs a decoder to be seen).
 * - `template`: the rest of the response is there, but a piece before it was stripped or put in
 *   (thinking, white space, an end token), or only the generation prompt differs.
 * - `history-edited`: what the policy said was changed, or older history was changed before it.
 */
export function classifyBreak(facts: BreakFacts, decode?: DecodeIds): BreakKind | null {
  const { earlierPrompt, earlierResponse, prompt, shared } = facts;
  const contextLength = earlierPrompt.length + earlierResponse.length;
  if (shared >= contextLength || shared >= prompt.length) return null;
  const before = concatIds(
    earlierPrompt.subarray(Math.min(shared, earlierPrompt.length)),
    earlierResponse.subarray(Math.max(0, shared - earlierPrompt.length)),
  );
  const after = prompt.subarray(shared);
  const isNearResponse = shared >= earlierPrompt.length - GENERATION_PROMPT_TOKENS;
  if (isNearResponse && decode !== undefined && startsWithText(after, before, decode)) {
    return "re-tokenisation";
  }
  if (shared >= earlierPrompt.length) {
    return isTemplateChange(before, after) ? "template" : "history-edited";
  }
  // The prompts themselves differ; only a prompt that quotes the response goes on from it.
  const quoted = earlierResponse.subarray(0, earlierResponse.length - 1);
  if (quoted.length < MIN_QUOTED_TOKENS || findIds(after, quoted) < 0) return null;
  return isNearResponse ? "template" : "history-edited";
}

function startsWithText(after: Int32Array, before: Int32Array, decode: DecodeIds): boolean {
  const text = decode(before);
  // One token is at least one byte of text, and one character at most four.
  return decode(after.subarray(0, 4 * text.length + 8)).startsWith(text);
}

function isTemplateChange(before: Int32Array, after: Int32Array): boolean {
  // Only the last token differs: the end token, or none at all.
  if (before.length === 1) return true;
  const kept = longestSuffixAtStart(before, after);
  if (kept >= 2 || (kept === 1 && before.length <= MAX_INSERTED_TOKENS)) return true;
  const inserted = findIds(after.subarray(0, before.length + MAX_INSERTED_TOKENS), before);
  return inserted > 0;
}

/** Length of the longest proper suffix of `ids` that `text` starts with. */
function longestSuffixAtStart(ids: Int32Array, text: Int32Array): number {
  const pattern = text.subarray(0, ids.length - 1);
  const fallback = prefixFunction(pattern);
  let matched = 0;
  for (let i = 1; i < ids.length; i++) {
    while (matched > 0 && (matched === pattern.length || ids[i] !== pattern[matched])) {
      matched = fallback[matched - 1] as number;
    }
    if (matched < pattern.length && ids[i] === pattern[matched]) matched++;
  }
  return matched;
}

/** First place of `pattern` in `ids`, or -1. Linear time. */
function findIds(ids: Int32Array, pattern: Int32Array): number {
  if (pattern.length === 0 || pattern.length > ids.length) return -1;
  const fallback = prefixFunction(pattern);
  let matched = 0;
  for (let i = 0; i < ids.length; i++) {
    while (matched > 0 && ids[i] !== pattern[matched]) matched = fallback[matched - 1] as number;
    if (ids[i] === pattern[matched]) matched++;
    if (matched === pattern.length) return i - matched + 1;
  }
  return -1;
}

function prefixFunction(pattern: Int32Array): Int32Array {
  const fallback = new Int32Array(pattern.length);
  let matched = 0;
  for (let i = 1; i < pattern.length; i++) {
    while (matched > 0 && pattern[i] !== pattern[matched])
      matched = fallback[matched - 1] as number;
    if (pattern[i] === pattern[matched]) matched++;
    fallback[i] = matched;
  }
  return fallback;
}

function concatIds(a: Int32Array, b: Int32Array): Int32Array {
  const ids = new Int32Array(a.length + b.length);
  ids.set(a);
  ids.set(b, a.length);
  return ids;
}
