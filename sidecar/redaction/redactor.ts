import type { Logger } from "../../runtime/log.ts";

export interface Redactor {
  redactBytes(body: Uint8Array): Uint8Array;
  redactText(text: string): string;
}
export function createRedactor(_: {
  readonly patterns: readonly string[];
  readonly log: Logger;
}): Redactor {
  return { redactBytes: (b) => b, redactText: (t) => t };
}
