/**
 * A byte-level BPE tokenizer, trained on the example's own texts and written as a Hugging Face
 * `tokenizer.json`. Digits and newlines always stand alone, so that numbers are copied digit by
 * digit and no token spans the boundary between a prompt and the response after it.
 */
export function trainTokenizer(
  texts: readonly string[],
  specialTokens: readonly string[],
  vocabSize: number,
): Record<string, unknown> {
  const alphabet = byteAlphabet();
  const pieces = countPieces(texts, specialTokens, alphabet);
  const vocab = [...specialTokens, ...alphabet.values()];
  const merges: [string, string][] = [];
  while (vocab.length < vocabSize) {
    const best = mostFrequentPair(pieces);
    if (best === undefined) break;
    merges.push(best);
    vocab.push(best[0] + best[1]);
    for (const piece of pieces) applyMerge(piece.symbols, best);
  }
  return tokenizerJson(vocab, merges, specialTokens);
}

interface Piece {
  symbols: string[];
  count: number;
}

/** GPT-2's mapping of the 256 bytes to printable characters. */
function byteAlphabet(): Map<number, string> {
  const printable = (byte: number): boolean =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
  const alphabet = new Map<number, string>();
  let next = 256;
  for (let byte = 0; byte < 256; byte += 1) {
    alphabet.set(byte, String.fromCodePoint(printable(byte) ? byte : next++));
  }
  return alphabet;
}

function countPieces(
  texts: readonly string[],
  specialTokens: readonly string[],
  alphabet: ReadonlyMap<number, string>,
): Piece[] {
  const escaped = specialTokens.map((token) => token.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  const boundary = new RegExp(`${escaped.join("|")}|\\d|\\n`, "g");
  const counts = new Map<string, number>();
  for (const text of texts) {
    for (const piece of text.split(boundary)) {
      if (piece !== "") counts.set(piece, (counts.get(piece) ?? 0) + 1);
    }
  }
  return [...counts].map(([text, count]) => ({
    symbols: [...Buffer.from(text)].map((byte) => alphabet.get(byte) as string),
    count,
  }));
}

/** The pair that occurs most often; ties go to the one seen first. */
function mostFrequentPair(pieces: readonly Piece[]): [string, string] | undefined {
  const counts = new Map<string, { pair: [string, string]; count: number }>();
  for (const { symbols, count } of pieces) {
    for (let i = 0; i + 1 < symbols.length; i += 1) {
      const pair: [string, string] = [symbols[i] as string, symbols[i + 1] as string];
      const key = pair.join(" ");
      const entry = counts.get(key) ?? { pair, count: 0 };
      entry.count += count;
      counts.set(key, entry);
    }
  }
  let best: { pair: [string, string]; count: number } | undefined;
  for (const entry of counts.values()) if (entry.count > (best?.count ?? 0)) best = entry;
  return best?.pair;
}

function applyMerge(symbols: string[], [left, right]: readonly [string, string]): void {
  for (let i = 0; i + 1 < symbols.length; i += 1) {
    if (symbols[i] === left && symbols[i + 1] === right) symbols.splice(i, 2, left + right);
  }
}

function tokenizerJson(
  vocab: readonly string[],
  merges: readonly [string, string][],
  specialTokens: readonly string[],
): Record<string, unknown> {
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: specialTokens.map((content, id) => ({
      id,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      // Tool tags are text that the server parses, so only the turn marks are special.
      special: content.startsWith("<|"),
    })),
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Split", pattern: { Regex: "\\d|\\n" }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: "",
      end_of_word_suffix: "",
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
      merges,
    },
  };
}
