import type { ClientAsked, DialectStream, RequestSettings } from "../dialect.ts";
import { createPassthroughStream } from "../passthrough-stream.ts";
import { completionsErrorBody } from "./error-body.ts";
import { completionsResponseToChunks } from "./response.ts";

export function createCompletionsStream(
  asked: ClientAsked,
  captured: boolean,
  settings: RequestSettings,
): DialectStream {
  return createPassthroughStream({
    asked,
    captured,
    keepAlive: settings.translation?.chatKeepAlive ?? "none",
    toChunks: completionsResponseToChunks,
    encodeError: completionsErrorBody,
  });
}
