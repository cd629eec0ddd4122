interface NormalizerJson {
  readonly type?: string;
  readonly normalizers?: readonly NormalizerJson[];
  readonly pattern?: { readonly String?: string };
  readonly content?: string;
}

interface TokenizerJson {
  readonly normalizer?: NormalizerJson | null;
  readonly added_tokens?: readonly { readonly lstrip?: boolean; readonly rstrip?: boolean }[];
  readonly model?: {
    readonly type?: string;
    readonly unk_token?: string | null;
    readonly byte_fallback?: boolean;
  };
}

/**
 * The most UTF-16 units of text that one token of a `tokenizer.json` can stand for. A byte-level
 * token has a character per byte, and a unit of text is at least one byte. Infinity where text may
 * vanish: unknown words as one token, tokens that eat the blanks beside them, normalizers that
 * leave something out.
 */
export function maxUnitsPerToken(
  tokenizerJson: unknown,
  /** Undefined where ids leave a gap. */
  tokens: Iterable<string | undefined>,
): number {
  const { model, normalizer, added_tokens: added } = tokenizerJson as TokenizerJson;
  const isBpe = model?.type === undefined || model.type === "BPE";
  const losesUnknown = (model?.unk_token ?? null) !== null && model?.byte_fallback !== true;
  const eatsBlanks = added?.some(({ lstrip, rstrip }) => lstrip === true || rstrip === true);
  if (!isBpe || losesUnknown || eatsBlanks === true) return Number.POSITIVE_INFINITY;
  let longest = 1;
  for (const token of tokens) longest = Math.max(longest, token?.length ?? 0);
  return longest * shrinking(normalizer);
}

/** How many units may become one. */
function shrinking(normalizer: NormalizerJson | null | undefined): number {
  if (normalizer === null || normalizer === undefined) return 1;
  switch (normalizer.type ?? "") {
    case "Sequence":
      return (normalizer.normalizers ?? []).reduce((product, n) => product * shrinking(n), 1);
    case "Prepend":
      return 1;
    case "NFC":
    case "NFKC":
      // A base with three marks that compose is the most that becomes one character.
      return 4;
    case "Replace": {
      const from = normalizer.pattern?.String?.length ?? Number.POSITIVE_INFINITY;
      return Math.max(1, from / (normalizer.content?.length ?? 0));
    }
    default:
      return Number.POSITIVE_INFINITY;
  }
}
