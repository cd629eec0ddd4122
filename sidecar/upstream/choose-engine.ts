export interface EngineLoad {
  readonly url: string;
  readonly inFlight: number;
  readonly isHealthy: boolean;
}

/**
 * Which engine gets a call: the rollout's own by rendezvous hashing (its prefix cache is there,
 * and a change of the set moves only the rollouts of the engines that changed), the next in the
 * rollout's order when that one is above `loadFactor` times the mean load. Unhealthy engines only
 * when there is no other: the health check may be behind the facts. Undefined when all are excluded.
 */
export function chooseEngine<E extends EngineLoad>(
  engines: readonly E[],
  rolloutId: string,
  excluded: ReadonlySet<string>,
  loadFactor = 1.25,
): E | undefined {
  if (engines.length === 1) {
    const [only] = engines;
    return only === undefined || excluded.has(only.url) ? undefined : only;
  }
  const open = engines.filter((engine) => !excluded.has(engine.url));
  const healthy = open.filter((engine) => engine.isHealthy);
  const candidates = healthy.length > 0 ? healthy : open;
  const total = candidates.reduce((sum, engine) => sum + engine.inFlight, 0);
  // The call itself counts, so that the bound is never below one call each.
  const bound = Math.ceil((loadFactor * (total + 1)) / Math.max(1, candidates.length));
  const order = candidates
    .map((engine) => ({ engine, score: hash(`${rolloutId}\n${engine.url}`) }))
    .sort((a, b) => b.score - a.score);
  return (order.find(({ engine }) => engine.inFlight < bound) ?? order[0])?.engine;
}

/** FNV-1a with a final mix: even enough over a handful of engines. */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    value = Math.imul(value ^ text.charCodeAt(index), 0x01000193);
  }
  value = Math.imul(value ^ (value >>> 16), 0x85ebca6b);
  value = Math.imul(value ^ (value >>> 13), 0xc2b2ae35);
  return (value ^ (value >>> 16)) >>> 0;
}
