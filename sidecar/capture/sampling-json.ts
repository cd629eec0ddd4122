import { lastMember, scanObject } from "../dialects/json-scan.ts";

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

/** The sampling members of a request as sent to the engine, their bytes unchanged, as JSON text. */
export function samplingJson(body: Buffer): string {
  const object = scanObject(body, 0);
  if (object === undefined) return "{}";
  const members: string[] = [];
  for (const name of samplingMembers) {
    const member = lastMember(object, name);
    if (member === undefined) continue;
    members.push(`"${name}":${body.toString("utf8", member.value.start, member.value.end)}`);
  }
  return `{${members.join(",")}}`;
}
