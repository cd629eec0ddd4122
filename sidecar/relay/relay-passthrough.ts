import type { IncomingMessage } from "node:http";
import type { DialectName } from "../capture/finished-call.ts";
import type { DialectError } from "../dialects/dialect.ts";
import { engineRequestHeaders, harnessResponseHeaders } from "../http/relay-headers.ts";
import type { Identity } from "../identity/identity.ts";
import { UpstreamExchange } from "../upstream/upstream-exchange.ts";
import { dialectsByName } from "./dialects-by-name.ts";
import type { HarnessReply } from "./harness-reply.ts";
import type { RelayContext } from "./relay-context.ts";
import { writeReply } from "./write-reply.ts";

/** Relays a request that samples nothing (model list, token counts), byte for byte, unrecorded. */
export function relayPassthrough(
  context: RelayContext,
  route: { readonly dialect: DialectName; readonly path: string; readonly query: string },
  identity: Identity,
  request: IncomingMessage,
  body: Buffer,
  reply: HarnessReply,
): void {
  const refuse = (error: DialectError): void =>
    writeReply(reply, dialectsByName[route.dialect].encodeError(error));
  const engine = context.engines.choose(identity.rolloutId, new Set());
  if (engine === undefined) {
    const message = "the sidecar knows no engine yet: its controller or --engine names one";
    refuse({ status: 503, reason: "engine-unreachable", message });
    return;
  }
  const exchange = new UpstreamExchange({
    onSent: () => undefined,
    onHead: (status, raw, message) => {
      const length = raw.findIndex(
        (part, index) => index % 2 === 0 && /^content-length$/i.test(part),
      );
      const contentLength = length === -1 ? {} : { contentLength: Number(raw[length + 1]) };
      reply.head(status, harnessResponseHeaders(raw, contentLength), message);
    },
    onBytes: (chunk) => {
      if (!reply.write(chunk)) exchange.pause();
    },
    onEnd: () => reply.end(),
    onFailure: ({ kind, message }) => {
      if (reply.hasHead || kind === "reset") reply.breakOff();
      else
        refuse({
          status: kind === "timeout" ? 504 : 503,
          reason: kind === "timeout" ? "engine-timeout" : "engine-unreachable",
          message: `the engine ${engine.url} cannot be reached: ${message}`,
        });
    },
  });
  reply.onDrain = () => exchange.resume();
  reply.onClosed = () => exchange.abort();
  exchange.start(engine.pool, {
    method: request.method === "GET" ? "GET" : "POST",
    path: `${engine.basePath}${route.path}${route.query}`,
    headers: engineRequestHeaders(request.rawHeaders, engine.apiKey),
    body: body.length === 0 ? null : body,
  });
}
