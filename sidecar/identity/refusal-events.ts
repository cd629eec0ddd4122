/** Refusals of one reason that one event stands for. */
export interface RefusalEvent {
  readonly reason: string;
  /** Those since the last event of this reason, this one included. */
  readonly count: number;
}

export interface RefusalEvents {
  /** What is to be recorded now; undefined within the interval of an event of the same reason. */
  note(reason: string): RefusalEvent | undefined;
}

/** Reasons are ours and few; a bound all the same. */
const maxReasons = 100;

/**
 * At most one event per reason and interval: whoever tries keys on an open port must not fill the
 * spool. Those between are counted in the next one, and each in the metrics.
 */
export function createRefusalEvents(intervalMs: number, nowMs: () => number): RefusalEvents {
  const byReason = new Map<string, { dueAtMs: number; count: number }>();
  return {
    note: (reason) => {
      const now = nowMs();
      const known = byReason.get(reason);
      if (known === undefined) {
        if (byReason.size >= maxReasons) return undefined;
        byReason.set(reason, { dueAtMs: now + intervalMs, count: 0 });
        return { reason, count: 1 };
      }
      known.count += 1;
      if (now < known.dueAtMs) return undefined;
      const { count } = known;
      known.count = 0;
      known.dueAtMs = now + intervalMs;
      return { reason, count };
    },
  };
}
