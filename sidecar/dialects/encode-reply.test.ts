import { expect, it } from "vitest";
import { encodeErrorReply } from "./encode-reply.ts";

it.each([
  ["gate-hold-limit", 429, { "retry-after": "2", "x-agl-paused": "true" }],
  ["engine-unreachable", 503, { "retry-after": "2" }],
] as const)("%s: says when to come back, and a pause that it is one", (reason, status, headers) => {
  const error = { status, reason, message: "wait", retryAfterSeconds: 1.5 };
  expect(encodeErrorReply(error, {}).headers).toEqual({
    "content-type": "application/json",
    ...headers,
  });
});
