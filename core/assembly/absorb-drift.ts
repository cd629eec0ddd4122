import type { DecodeIds } from "./classify-break.ts";

export interface DriftFacts {
  /** Prompt length and response of the call whose end drifted. */
  readonly earlierPromptLength: number;
  readonly earlierResponse: Int32Array;
  /** The prompt that seems to go on from it. */
  readonly prompt: Int32Array;
  /** Number of tokens that this prompt shares with the earlier context. */
  readonly shared: number;
}

/**
 * True where the prompt shows the earlier response with the same text in other ids, so that both
 * fit one row if the response is trained only up to its first differing token. At least one token
 * of the response stays trained and at most `maxLostTokens` are given up.
 */
export function canAbsorbDrift(
  facts: DriftFacts,
  decode: DecodeIds,
  maxLostTokens: number,
): boolean {
  const { earlierPromptLength, earlierResponse, prompt, shared } = facts;
  const kept = shared - earlierPromptLength;
  const lost = earlierResponse.length - kept;
  if (kept < 1 || lost < 1 || lost > maxLostTokens) return false;
  // From the response's start on: a decoder may need the tokens before to place a byte or a space.
  const text = decode(earlierResponse);
  const furthest = Math.min(prompt.length, shared + 4 * maxLostTokens + 8);
  for (let end = shared + 1; end <= furthest; end++) {
    const shown = decode(prompt.subarray(earlierPromptLength, end));
    if (shown === text) return true;
    if (shown.length > text.length + 8) return false;
  }
  return false;
}
