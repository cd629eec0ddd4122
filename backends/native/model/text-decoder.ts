import type { PolicyTokenizer } from "./policy-tokenizer.ts";

/**
 * Turns sampled ids into text as they come. A character whose bytes are spread over tokens is held
 * back until it is whole, so the texts joined are the same whatever the chunking; bytes that are
 * no UTF-8 become U+FFFD. Special tokens have no text.
 */
export interface IdTextDecoder {
  push(id: number): string;
  /** What is left: the replacement character for a half character, else "". */
  end(): string;
}

export function createIdTextDecoder(tokenizer: PolicyTokenizer): IdTextDecoder {
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  return {
    push: (id) => {
      if (tokenizer.isSpecial(id)) return "";
      const bytes = tokenizer.bytesOf(id);
      // An added token is text by itself; what was open before it can never be completed.
      if (tokenizer.isAdded(id)) return utf8.decode() + utf8.decode(bytes, { stream: true });
      return utf8.decode(bytes, { stream: true });
    },
    end: () => utf8.decode(),
  };
}

/** The text of whole ids, without special tokens. */
export function decodeIds(tokenizer: PolicyTokenizer, ids: Iterable<number>): string {
  const decoder = createIdTextDecoder(tokenizer);
  let text = "";
  for (const id of ids) text += decoder.push(id);
  return text + decoder.end();
}
