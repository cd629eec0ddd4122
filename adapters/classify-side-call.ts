import type { HarnessCall } from "./harness-adapter.ts";
import { recognizeHarness } from "./recognize-harness.ts";

/**
 * The kind of a side call (see `HarnessAdapter.sideCallClass`); undefined for a turn. Needs the
 * parsed body, so it belongs after the call, not before it.
 */
export function classifySideCall(call: HarnessCall): string | undefined {
  return recognizeHarness(call.headers)?.sideCallClass(call);
}
