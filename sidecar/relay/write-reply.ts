import type { EncodedReply } from "../dialects/dialect.ts";
import type { HarnessReply } from "./harness-reply.ts";

/** A whole answer of the sidecar's own. */
export function writeReply(
  reply: Pick<HarnessReply, "head" | "end">,
  { status, headers, body }: EncodedReply,
): void {
  reply.head(status, [...Object.entries(headers).flat(), "content-length", String(body.length)]);
  reply.end(body);
}
