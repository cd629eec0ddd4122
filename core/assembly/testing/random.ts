/** A small seeded generator (mulberry32): the same seed gives the same attempts everywhere. */
export interface Random {
  /** In [0, 1). */
  readonly next: () => number;
  /** An integer in [0, count). */
  readonly below: (count: number) => number;
  readonly chance: (probability: number) => boolean;
}

export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const below = (count: number): number => Math.floor(next() * count);
  return { next, below, chance: (probability) => next() < probability };
}

export function shuffled<T>(items: readonly T[], random: Random): T[] {
  const mixed = [...items];
  for (let i = mixed.length - 1; i > 0; i--) {
    const j = random.below(i + 1);
    [mixed[i], mixed[j]] = [mixed[j] as T, mixed[i] as T];
  }
  return mixed;
}
