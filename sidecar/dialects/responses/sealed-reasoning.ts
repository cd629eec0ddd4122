import { asText, type JsonValue } from "../json-value.ts";

/** Marks reasoning text of ours; another server's encrypted content is not readable. */
const mark = "or1.";

/**
 * A harness without stored responses asks for `reasoning.encrypted_content` and sends it back, and
 * may leave the plain text out. It is not secret from the harness, so it is encoded, not encrypted.
 */
export function encodeReasoning(text: string): string {
  return mark + Buffer.from(text).toString("base64");
}

export function decodeReasoning(value: JsonValue | undefined): string | undefined {
  const sealed = asText(value);
  if (sealed === undefined || !sealed.startsWith(mark)) return undefined;
  return Buffer.from(sealed.slice(mark.length), "base64").toString("utf8");
}
