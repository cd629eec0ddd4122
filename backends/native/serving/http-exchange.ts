import type { IncomingMessage, ServerResponse } from "node:http";
import { OutriggerError } from "../../../core/outrigger-error.ts";

/** A 200,000-token prompt as text is about 1 MB, as an id array about 2. */
const maxBodyBytes = 16 * 1024 * 1024;

export type Handler = (exchange: Exchange) => Promise<void> | void;

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Aborted when the client goes away before the response is whole. */
  readonly signal: AbortSignal;
}

export async function readBody(request: IncomingMessage): Promise<Uint8Array> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    size += part.length;
    if (size > maxBodyBytes) {
      throw new OutriggerError("body-too-large", `the body is over ${maxBodyBytes} bytes`, {
        origin: "harness",
      });
    }
    parts.push(part);
  }
  return Buffer.concat(parts);
}

export function startEvents(response: ServerResponse): void {
  response.writeHead(200, {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
  });
}

export function writeEvent(response: ServerResponse, event: unknown): void {
  if (event !== undefined) response.write(`data: ${JSON.stringify(event)}\n\n`);
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): void {
  const bytes = Buffer.from(JSON.stringify(body));
  response.writeHead(status, {
    "content-type": "application/json",
    "content-length": bytes.length,
    ...headers,
  });
  response.end(bytes);
}
