import type { DecodeSession } from "../compute/compute.ts";

export interface ScriptedSession extends DecodeSession {
  /** The slots and token counts of each `extend`, in order. */
  readonly extends: readonly (readonly { readonly slot: number; readonly tokens: number }[])[];
}

/**
 * A decode session for tests: the logits after a context are what `logitsOf` says. Like a real one
 * it knows only what it was given, so a scheduler that feeds it wrongly gets wrong tokens.
 */
export function createScriptedSession(
  logitsOf: (context: readonly number[]) => Float32Array,
  beforeExtend: () => Promise<void> = async () => undefined,
): ScriptedSession {
  const contexts = new Map<number, number[]>();
  const log: { slot: number; tokens: number }[][] = [];
  return {
    extends: log,
    extend: async (items) => {
      await beforeExtend();
      if (new Set(items.map((i) => i.slot)).size !== items.length) throw new Error("slot twice");
      log.push(items.map(({ slot, tokenIds }) => ({ slot, tokens: tokenIds.length })));
      return items.map(({ slot, tokenIds }) => {
        if (tokenIds.length === 0) throw new Error("nothing to extend with");
        const context = [...(contexts.get(slot) ?? []), ...tokenIds];
        contexts.set(slot, context);
        return logitsOf(context);
      });
    },
    truncate: (slot, length) => {
      contexts.set(slot, (contexts.get(slot) ?? []).slice(0, length));
    },
    lengthOf: (slot) => contexts.get(slot)?.length ?? 0,
    close: () => contexts.clear(),
  };
}

/** Logits that all but certainly give `id`. */
export function certain(vocabSize: number, id: number): Float32Array {
  const logits = new Float32Array(vocabSize);
  logits[id] = 50;
  return logits;
}
