import type { Duplex } from "node:stream";

/** What Node's parser says, as the status that it means; anything else is a broken request. */
const statuses: ReadonlyMap<string, readonly [number, string, string]> = new Map([
  [
    "HPE_HEADER_OVERFLOW",
    [431, "Request Header Fields Too Large", "the request's headers are larger than 64 KiB"],
  ],
  [
    "ERR_HTTP_REQUEST_TIMEOUT",
    [408, "Request Timeout", "the request's headers were not whole in time"],
  ],
]);

/** Bytes of headers that a request may have; engines allow as much. */
export const maxHeaderBytes = 64 * 1024;

/**
 * Says why a request cannot be read as HTTP and closes its connection. Nothing is said where an
 * answer may have begun on it, or to a harness that has gone.
 */
export function refuseUnreadable(error: NodeJS.ErrnoException, socket: Duplex): void {
  const { bytesWritten } = socket as Duplex & { readonly bytesWritten?: number };
  if (error.code === "ECONNRESET" || !socket.writable || bytesWritten !== 0) {
    socket.destroy();
    return;
  }
  const [status, phrase, message] = statuses.get(error.code ?? "") ?? [
    400,
    "Bad Request",
    `the request is not HTTP/1.1 as the sidecar reads it (${error.message})`,
  ];
  const body = JSON.stringify({
    error: { message, type: "invalid_request_error", param: null, code: "unreadable-request" },
  });
  const head = [
    `HTTP/1.1 ${status} ${phrase}`,
    "content-type: application/json",
    `content-length: ${Buffer.byteLength(body)}`,
    "connection: close",
  ];
  socket.end(`${head.join("\r\n")}\r\n\r\n${body}`, () => socket.destroy());
}
