import type { HarnessName, RequestHeaders } from "./harness-adapter.ts";
import { recognizeHarness } from "./recognize-harness.ts";

/** Whose session a request belongs to, by what its harness sends. */
export interface HarnessSession {
  readonly harness: HarnessName;
  /** Unique over harnesses, e.g. `codex:0199b2…`. */
  readonly sessionId: string;
}

/**
 * The session of a deployed agent's call; undefined for a harness that is not known or names none.
 * Looks at headers only: it stands in the path of every call.
 */
export function readHarnessSession(headers: RequestHeaders): HarnessSession | undefined {
  const adapter = recognizeHarness(headers);
  const id = adapter?.sessionId(headers);
  if (adapter === undefined || id === undefined) return undefined;
  return { harness: adapter.name, sessionId: `${adapter.name}:${id}` };
}
