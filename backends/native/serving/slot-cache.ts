/** The KV caches that no sequence uses now, and the ids that each holds. */
export interface SlotCache {
  readonly freeCount: number;
  /**
   * Takes the free slot whose cached ids share the longest prefix with `ids`; without any shared
   * id an empty slot, else the one used longest ago. `keep` is how many cached ids are kept; at
   * least the last id is always computed again, since its logits are wanted.
   */
  take(ids: Int32Array): { readonly slot: number; readonly keep: number } | undefined;
  /** Gives a slot back with the ids that its cache holds. */
  give(slot: number, cachedIds: Int32Array): void;
  /** Forgets all cached ids (the weights changed); gives the slots that held some. */
  invalidate(): number[];
}

export function createSlotCache(slotCount: number): SlotCache {
  // Insertion order is order of last use.
  const free = new Map<number, Int32Array>();
  for (let slot = 0; slot < slotCount; slot++) free.set(slot, new Int32Array(0));
  return {
    get freeCount() {
      return free.size;
    },
    take: (ids) => {
      let best: { slot: number; shared: number; size: number } | undefined;
      for (const [slot, cached] of free) {
        const shared = Math.min(sharedPrefix(cached, ids), ids.length - 1);
        const isBetter =
          best === undefined ||
          shared > best.shared ||
          (shared === best.shared && shared === 0 && cached.length === 0 && best.size > 0);
        if (isBetter) best = { slot, shared, size: cached.length };
      }
      if (best === undefined) return undefined;
      free.delete(best.slot);
      return { slot: best.slot, keep: Math.max(0, best.shared) };
    },
    give: (slot, cachedIds) => {
      free.set(slot, cachedIds);
    },
    invalidate: () => {
      const held = [...free].filter(([, cached]) => cached.length > 0).map(([slot]) => slot);
      for (const slot of held) free.set(slot, new Int32Array(0));
      return held;
    },
  };
}

function sharedPrefix(a: Int32Array, b: Int32Array): number {
  const end = Math.min(a.length, b.length);
  let n = 0;
  while (n < end && a[n] === b[n]) n++;
  return n;
}
