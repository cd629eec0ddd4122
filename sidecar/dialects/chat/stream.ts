import type { ClientAsked, DialectStream, RequestSettings } from "../dialect.ts";
import { createPassthroughStream } from "../passthrough-stream.ts";
import { chatErrorBody } from "./error-body.ts";
import { chatResponseToChunks } from "./response.ts";

export function createChatStream(
  asked: ClientAsked,
  captured: boolean,
  settings: RequestSettings,
): DialectStream {
  return createPassthroughStream({
    asked,
    captured,
    keepAlive: settings.translation?.chatKeepAlive ?? "none",
    toChunks: chatResponseToChunks,
    encodeError: chatErrorBody,
  });
}
