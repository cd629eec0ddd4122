/** Where the engine does not say what runs, so many old versions are kept for running calls. */
const keptWithoutMetrics = 2;

/**
 * Which adapters an engine may forget: those that are not needed and that no call runs or waits
 * with. `loaded` is in order of loading.
 */
export function decideUnload(facts: {
  readonly loaded: readonly string[];
  readonly needed: readonly string[];
  /** Undefined: the engine does not say. */
  readonly busy: ReadonlySet<string> | undefined;
}): readonly string[] {
  const { loaded, needed, busy } = facts;
  const old = loaded.filter((name) => !needed.includes(name));
  return busy === undefined
    ? old.slice(0, Math.max(0, old.length - keptWithoutMetrics))
    : old.filter((name) => !busy.has(name));
}
