import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { ModelConfig } from "../model/model-config.ts";

export interface DecodeItem {
  readonly slot: number;
  readonly tokenIds: Int32Array;
}

/** A piece of an item's tokens; the last piece's logits are the item's. */
export interface DecodePiece extends DecodeItem {
  readonly itemIndex: number;
  readonly isLast: boolean;
  /** Nothing is cached for its sequence yet. */
  readonly isFresh: boolean;
}

/** Pieces that one graph run takes together, at most one per slot. */
export type DecodeGroup = readonly DecodePiece[];

export interface DecodeLimits {
  /** Tokens of one piece: bounds the attention matrix of a long prefill. */
  readonly maxPieceTokens: number;
  /** Pieces × longest piece in one run. */
  readonly maxGroupTokens: number;
}

const pieceKind = (piece: DecodePiece): number => {
  if (piece.tokenIds.length === 1 && !piece.isFresh) return 0;
  return piece.isFresh ? 2 : 1;
};

/**
 * Cuts long items into pieces and puts into one run what wastes little padding together: decode
 * steps with decode steps, fresh prefills with fresh prefills, longest first. Pieces of an item
 * are in order.
 */
export function planDecode(
  items: readonly DecodeItem[],
  lengthOf: (slot: number) => number,
  limits: DecodeLimits,
): DecodeGroup[] {
  const rounds: DecodePiece[][] = [];
  for (const [itemIndex, { slot, tokenIds }] of items.entries()) {
    for (let start = 0; start < tokenIds.length; start += limits.maxPieceTokens) {
      const end = Math.min(tokenIds.length, start + limits.maxPieceTokens);
      const round = start / limits.maxPieceTokens;
      rounds[round] ??= [];
      rounds[round].push({
        itemIndex,
        slot,
        tokenIds: tokenIds.subarray(start, end),
        isLast: end === tokenIds.length,
        isFresh: start === 0 && lengthOf(slot) === 0,
      });
    }
  }
  return rounds.flatMap((round) => groupRound(round, limits));
}

function groupRound(pieces: readonly DecodePiece[], limits: DecodeLimits): DecodeGroup[] {
  const order = pieces.toSorted(
    (a, b) => pieceKind(a) - pieceKind(b) || b.tokenIds.length - a.tokenIds.length,
  );
  const groups: DecodePiece[][] = [];
  for (const piece of order) {
    const last = groups.at(-1);
    const head = last?.[0];
    if (last !== undefined && head !== undefined && pieceKind(head) === pieceKind(piece)) {
      const padded = (last.length + 1) * head.tokenIds.length;
      const isTight = piece.tokenIds.length * 2 >= head.tokenIds.length || padded <= 64;
      if (isTight && padded <= limits.maxGroupTokens) {
        last.push(piece);
        continue;
      }
    }
    groups.push([piece]);
  }
  return groups;
}

const refuse = (reason: string, message: string, hint: string): OutriggerError =>
  new OutriggerError(reason, message, { origin: "user", hint });

export interface DecodeBounds {
  readonly slots: number;
  readonly maxLength: number;
}

/** Throws before anything is computed when a call cannot be served. */
export function checkDecodeItems(
  items: readonly DecodeItem[],
  lengthOf: (slot: number) => number,
  bounds: DecodeBounds,
  config: ModelConfig,
): void {
  const seen = new Set<number>();
  for (const { slot, tokenIds } of items) {
    if (!Number.isInteger(slot) || slot < 0 || slot >= bounds.slots) {
      throw new RangeError(`slot ${slot} is not one of ${bounds.slots}`);
    }
    if (seen.has(slot)) throw new RangeError(`slot ${slot} appears twice in one call`);
    seen.add(slot);
    if (tokenIds.length === 0) throw new RangeError(`no tokens for slot ${slot}`);
    const length = lengthOf(slot) + tokenIds.length;
    if (length > bounds.maxLength) {
      throw refuse(
        "sequence-too-long",
        `a sequence of ${length} tokens exceeds the limit of ${bounds.maxLength}`,
        "Lower max_tokens, or use a model with a longer context.",
      );
    }
    const bad = tokenIds.find((id) => id < 0 || id >= config.vocabSize);
    if (bad !== undefined) {
      throw refuse(
        "token-out-of-range",
        `token id ${bad} is outside the vocabulary of ${config.vocabSize}`,
        "The tokenizer does not belong to this model.",
      );
    }
  }
}

export function checkDecodeBounds(bounds: DecodeBounds, config: ModelConfig): void {
  if (!Number.isInteger(bounds.slots) || bounds.slots < 1) {
    throw new RangeError(`slots must be 1 or more, got ${bounds.slots}`);
  }
  if (bounds.maxLength > config.maxSequenceLength || bounds.maxLength < 1) {
    throw refuse(
      "sequence-limit-invalid",
      `maximum length ${bounds.maxLength} is not between 1 and the model's ${config.maxSequenceLength}`,
      "Set the native backend's maximum length to what the model's config.json allows.",
    );
  }
}
