import type { JsonRecord } from "./json-value.ts";

/** One event whose name is its `type`, as both the Messages and the Responses API have it. */
export function encodeEvent(value: JsonRecord & { readonly type: string }): string {
  return `event: ${value.type}\ndata: ${JSON.stringify(value)}\n\n`;
}
