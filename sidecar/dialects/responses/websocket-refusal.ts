import type { EncodedReply } from "../dialect.ts";
import { encodeReply } from "../encode-reply.ts";

/**
 * The answer to `GET /v1/responses` with an upgrade to WebSocket: 426 makes Codex use HTTP at
 * once, where any other refusal makes it try again.
 */
export function refuseWebSocket(): EncodedReply {
  const message = "WebSocket is not supported here; send POST /v1/responses";
  const reply = encodeReply(426, {
    error: { message, type: "invalid_request_error", param: null, code: "websocket_not_supported" },
  });
  return { ...reply, headers: { ...reply.headers, connection: "close", upgrade: "HTTP/1.1" } };
}
