import type { DialectError, EncodedReply } from "./dialect.ts";

export function encodeReply(status: number, value: unknown): EncodedReply {
  const body = Buffer.from(JSON.stringify(value));
  return { status, headers: { "content-type": "application/json" }, body };
}

/** A 429 or 503 of the sidecar's own always says when to come back: some harnesses give up else. */
export function encodeErrorReply(error: DialectError, value: unknown): EncodedReply {
  const reply = encodeReply(error.status, value);
  const isRetryLater = error.status === 429 || error.status === 503;
  const seconds = error.retryAfterSeconds ?? (isRetryLater ? 1 : undefined);
  if (seconds === undefined) return reply;
  const whole = String(Math.max(1, Math.ceil(seconds)));
  // Agents of Agent Lightning tell a pause from an overloaded engine by this header.
  const pause = error.reason === "gate-hold-limit" ? { "x-agl-paused": "true" } : {};
  return { ...reply, headers: { ...reply.headers, "retry-after": whole, ...pause } };
}
