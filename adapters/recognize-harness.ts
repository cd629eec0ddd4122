import type { HarnessAdapter, RequestHeaders } from "./harness-adapter.ts";
import { harnessAdapters } from "./harness-adapters.ts";

const adapters = Object.values(harnessAdapters);

/** The adapter of the harness that sent these headers; undefined for one that nobody knows. */
export function recognizeHarness(headers: RequestHeaders): HarnessAdapter | undefined {
  return adapters.find((adapter) => adapter.recognizes(headers));
}
