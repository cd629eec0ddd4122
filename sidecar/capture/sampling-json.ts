import { type ByteRange, skipValue, walkObject } from "../dialects/json-scan.ts";

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
  const found: (ByteRange | undefined)[] = [];
  let count = 0;
  const close = walkObject(body, 0, (key, _keyStart, start) => {
    const end = skipValue(body, start);
    const place = places.get(key);
    if (place !== undefined) {
      // The last of several, as JSON.parse would see it.
      found[place] = { start, end };
      count += 1;
    }
    return end;
  });
  if (close === undefined || count === 0) return "{}";
  const members = samplingMembers.flatMap((name, place) => {
    const value = found[place];
    return value === undefined ? [] : `"${name}":${body.toString("utf8", value.start, value.end)}`;
  });
  return `{${members.join(",")}}`;
}
