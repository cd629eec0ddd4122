import type { IncomingMessage } from "node:http";

export type BodyRead =
  | { readonly kind: "read"; readonly body: Buffer }
  | { readonly kind: "too-large" }
  /** The harness went away before its request was whole. */
  | { readonly kind: "aborted" };

const noBytes = Buffer.alloc(0);

/**
 * The whole request body, up to `maxBytes`. Of a larger one as much again is read and thrown away:
 * most clients hear a refusal only when they have sent everything.
 */
export function readBody(request: IncomingMessage, maxBytes: number): Promise<BodyRead> {
  if (Number(request.headers["content-length"]) > 2 * maxBytes)
    return Promise.resolve({ kind: "too-large" });
  return new Promise((resolve) => {
    let chunks: Buffer[] = [];
    let bytes = 0;
    // Listeners stay: a request is read once, and an `error` after that must not be uncaught.
    request.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes <= maxBytes) {
        chunks.push(chunk);
        return;
      }
      chunks = [];
      if (bytes <= 2 * maxBytes) return;
      request.pause();
      resolve({ kind: "too-large" });
    });
    request.on("end", () => {
      if (bytes > maxBytes) {
        resolve({ kind: "too-large" });
        return;
      }
      const [first = noBytes] = chunks;
      resolve({ kind: "read", body: chunks.length <= 1 ? first : Buffer.concat(chunks, bytes) });
    });
    const onGone = (): void => resolve({ kind: "aborted" });
    request.on("error", onGone);
    request.on("close", onGone);
  });
}
