import type { IncomingMessage } from "node:http";

export type BodyRead =
  | { readonly kind: "read"; readonly body: Buffer }
  | { readonly kind: "too-large" }
  /** The harness went away before its request was whole. */
  | { readonly kind: "aborted" };

const noBytes = Buffer.alloc(0);

/** The whole request body, up to `maxBytes`; the rest of a larger one is not read. */
export function readBody(request: IncomingMessage, maxBytes: number): Promise<BodyRead> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const settle = (result: BodyRead): void => {
      request.off("data", onData);
      request.off("end", onEnd);
      request.off("error", onGone);
      request.off("close", onGone);
      resolve(result);
    };
    const onData = (chunk: Buffer): void => {
      bytes += chunk.length;
      if (bytes > maxBytes) {
        request.pause();
        settle({ kind: "too-large" });
      } else chunks.push(chunk);
    };
    const onEnd = (): void => {
      const [first = noBytes] = chunks;
      settle({ kind: "read", body: chunks.length <= 1 ? first : Buffer.concat(chunks, bytes) });
    };
    const onGone = (): void => {
      // An `error` listener stays: a reset after this must not be uncaught.
      request.on("error", ignore);
      settle({ kind: "aborted" });
    };
    if (Number(request.headers["content-length"]) > maxBytes) {
      resolve({ kind: "too-large" });
      return;
    }
    request.on("data", onData);
    request.on("end", onEnd);
    request.on("error", onGone);
    request.on("close", onGone);
  });
}

function ignore(): void {}
