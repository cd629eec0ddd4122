import type { ObjectScan } from "./json-scan.ts";
import type { JsonValue } from "./json-value.ts";
import { scanRequest } from "./splice-request.ts";

/** What decides how tokens are drawn, by the engines' names. */
const samplingMembers = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "n",
  "seed",
  "max_tokens",
  "max_completion_tokens",
  "stop",
  "stop_token_ids",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "logit_bias",
] as const;

const places: ReadonlyMap<string, number> = new Map(
  samplingMembers.map((name, place) => [name, place]),
);

/** The sampling members of a request as sent to the engine, their bytes unchanged, as JSON text. */
export function samplingJson(body: Buffer): string {
  return samplingOf(body, scanRequest(body), {});
}

/** The same for a request that was scanned before `overrides` were spliced into it. */
export function samplingOf(
  body: Buffer,
  root: ObjectScan | undefined,
  overrides: Readonly<Record<string, JsonValue>>,
): string {
  if (root === undefined) return "{}";
  const values: (string | undefined)[] = [];
  for (const { key, value } of root.members) {
    const place = places.get(key);
    // The last of several, as JSON.parse would see it.
    if (place !== undefined) values[place] = body.toString("utf8", value.start, value.end);
  }
  for (const key in overrides) {
    const place = places.get(key);
    if (place !== undefined) values[place] = JSON.stringify(overrides[key]);
  }
  let text = "";
  for (let place = 0; place < values.length; place += 1) {
    const value = values[place];
    if (value !== undefined)
      text += `${text === "" ? "" : ","}"${samplingMembers[place] as string}":${value}`;
  }
  return `{${text}}`;
}
