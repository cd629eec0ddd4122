/**
 * Exponential backoff with full jitter: between half and all of 100 ms · 2^failures, at most 5 s.
 * The half keeps a fleet from hammering, the jitter keeps it from arriving at once.
 * @param failures connections in a row that ended before a welcome
 * @param random uniform in [0, 1)
 */
export function reconnectDelayMs(failures: number, random: number): number {
  const ceiling = Math.min(5_000, 100 * 2 ** Math.min(failures, 10));
  return ceiling * (0.5 + random / 2);
}
