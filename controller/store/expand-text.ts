import { inflateRawSync } from "node:zlib";
import type { TextBody } from "../../proto/gen/outrigger/v1/record_pb.ts";

/** No body is longer: a bound on what a forged record can make of its bytes. */
const maxTextBytes = 256 * 1024 * 1024;

/**
 * The text of the last body. `chain` starts with a body that has no base; each is the base of the
 * next. Null when a part is missing or its bytes are wrong.
 */
export function expandText(chain: readonly TextBody[]): string | null {
  let text: Buffer | undefined;
  for (const body of chain) {
    const rest = restOf(body);
    if (rest === undefined) return null;
    if (body.baseRequestId === "") text = rest;
    else {
      if (text === undefined || body.sharedBytes + body.sharedSuffixBytes > text.length)
        return null;
      text = Buffer.concat([
        text.subarray(0, body.sharedBytes),
        rest,
        text.subarray(text.length - body.sharedSuffixBytes),
      ]);
    }
  }
  return text?.toString("utf8") ?? null;
}

function restOf(body: TextBody): Buffer | undefined {
  if (!body.deflated) return Buffer.from(body.rest);
  try {
    return inflateRawSync(body.rest, { maxOutputLength: maxTextBytes });
  } catch {
    return undefined;
  }
}
