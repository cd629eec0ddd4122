export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue };

export type JsonRecord = { readonly [key: string]: JsonValue };

export function asRecord(value: unknown): JsonRecord | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as JsonRecord)
    : undefined;
}

export function asArray(value: unknown): readonly JsonValue[] | undefined {
  return Array.isArray(value) ? (value as readonly JsonValue[]) : undefined;
}

export function asString(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

/** A number that JSON can carry; NaN and infinities are not. */
export function asNumber(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** A count or an index as records carry it: whole, not negative, 32 bits. */
export function asCount(value: unknown): number | undefined {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= 0xffff_ffff
    ? (value as number)
    : undefined;
}

/** A text with something in it: engines send `""` and null for "nothing". */
export function asText(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

const quotedOrSpecial = /"[^"\\]*(?:\\[\s\S][^"\\]*)*"|-?\b(?:NaN|Infinity)\b/g;

/**
 * JSON text to a value; undefined when it is not JSON. The bare words NaN, Infinity and -Infinity,
 * which Python's encoder writes for logprobs, are read as null: the rest of such a chunk is intact.
 */
export function parseJson(text: string): JsonValue | undefined {
  const strict = tryParse(text);
  if (strict !== undefined || !/NaN|Infinity/.test(text)) return strict;
  return tryParse(text.replace(quotedOrSpecial, (match) => (match[0] === '"' ? match : "null")));
}

function tryParse(text: string): JsonValue | undefined {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return undefined;
  }
}
