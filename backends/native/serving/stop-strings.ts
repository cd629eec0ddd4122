import { heldPrefixLength } from "../tool-calls/held-prefix.ts";

/** Looks for stop strings in text that comes in pieces. */
export interface StopMatcher {
  /** Text that is certain to come before any stop string; `matched` says which one ended it. */
  push(text: string): { readonly text: string; readonly matched?: string };
  end(): string;
}

/** The text is cut before the earliest stop string; of two at one place, before the first given. */
export function createStopMatcher(stops: readonly string[]): StopMatcher {
  let pending = "";
  return {
    push: (text) => {
      pending += text;
      const found = earliest(pending, stops);
      if (found !== undefined) {
        const before = pending.slice(0, found.at);
        pending = "";
        return { text: before, matched: found.stop };
      }
      const held = Math.max(0, ...stops.map((stop) => heldPrefixLength(pending, stop)));
      const safe = pending.slice(0, pending.length - held);
      pending = pending.slice(pending.length - held);
      return { text: safe };
    },
    end: () => {
      const rest = pending;
      pending = "";
      return rest;
    },
  };
}

function earliest(
  text: string,
  stops: readonly string[],
): { readonly at: number; readonly stop: string } | undefined {
  let found: { at: number; stop: string } | undefined;
  for (const stop of stops) {
    const at = text.indexOf(stop);
    if (at >= 0 && (found === undefined || at < found.at)) found = { at, stop };
  }
  return found;
}
