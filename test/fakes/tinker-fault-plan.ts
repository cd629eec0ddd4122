import { randomStream } from "../../backends/native/serving/random-stream.ts";
import type { Fault } from "./tinker-dialect.ts";

const kinds: readonly Fault[] = ["refused", "gateway", "lost", "unseen"];

/**
 * A fault for about one request in `oneIn`, the same ones for the same seed, and never two within
 * `apart` requests: an outage without end is another test.
 */
export function faultPlan(
  seed: number,
  oneIn: number,
  apart = 12,
): (path: string) => Fault | undefined {
  const random = randomStream("faults", seed);
  let since = 0;
  return () => {
    since += 1;
    if (since < apart || random() * oneIn >= 1) return undefined;
    since = 0;
    return kinds[Math.floor(random() * kinds.length)];
  };
}
