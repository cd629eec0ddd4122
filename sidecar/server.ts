import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { OutriggerError } from "../core/outrigger-error.ts";
import { Roster } from "../core/roster.ts";
import type { DialectName } from "./capture/finished-call.ts";
import type { ControlRoutes } from "./control-routes.ts";
import type { DialectError } from "./dialects/dialect.ts";
import { refuseWebSocket } from "./dialects/responses/websocket-refusal.ts";
import {
  acceptedEncodings,
  type DecodedBody,
  decodeRequestBody,
} from "./http/decode-request-body.ts";
import { type BodyRead, readBody } from "./http/read-body.ts";
import { maxHeaderBytes, refuseUnreadable } from "./http/refuse-unreadable.ts";
import { type Route, routeRequest } from "./http/route-request.ts";
import type { Identity, IdentityDecision } from "./identity/identity.ts";
import { type IdentitySources, resolveIdentity } from "./identity/identity-resolver.ts";
import { replayRecord } from "./relay/call-record.ts";
import { CallRelay } from "./relay/call-relay.ts";
import { countTokens } from "./relay/count-tokens.ts";
import { dialectsByName } from "./relay/dialects-by-name.ts";
import { HarnessReply } from "./relay/harness-reply.ts";
import type { RelayContext } from "./relay/relay-context.ts";
import { relayPassthrough } from "./relay/relay-passthrough.ts";
import type { RetriableCall } from "./relay/retriable-call.ts";
import { writeReply } from "./relay/write-reply.ts";

export interface SidecarServerOptions {
  readonly context: RelayContext;
  readonly identity: () => IdentitySources;
  /** Health, readiness, metrics. */
  readonly control: ControlRoutes;
  /** Resolves when records can be kept again; at once in the ordinary case. */
  readonly awaitCapacity: () => Promise<void> | undefined;
  readonly onRefusal: (reason: string) => void;
  /** A call of nobody's; besides `onRefusal`. */
  readonly onUnknown: (refused: RefusedIdentity) => void;
  readonly keepAliveSweepMs: number;
}

/** For the record of a refusal: nothing of the credential, which may be in the path too. */
export interface RefusedIdentity {
  readonly reason: string;
  readonly status: number;
  readonly dialect: DialectName;
}

type CallRoute = Extract<Route, { readonly kind: "call" | "passthrough" | "count-tokens" }>;

/**
 * The harness's side: one Node HTTP server and no framework, because a chunk that passes through
 * web streams costs ten times the relay itself.
 */
export class SidecarServer {
  readonly #options: SidecarServerOptions;
  readonly #server: Server;
  readonly #relays = new Roster<CallRelay>();
  /** Requests whose record may still come. */
  #running = 0;
  #onSettled: (() => void)[] = [];
  #sweep: NodeJS.Timeout | undefined;
  #isDraining = false;

  constructor(options: SidecarServerOptions) {
    this.#options = options;
    this.#server = createServer(
      // A held call may wait for minutes; the limits on silence are the gate's and the engine's.
      {
        requestTimeout: 0,
        keepAliveTimeout: 75_000,
        noDelay: true,
        maxHeaderSize: maxHeaderBytes,
      },
      (request, response) => {
        const route = routeRequest(request.method ?? "GET", request.url ?? "/");
        if (route.kind === "control") void options.control(route.path, request, response);
        else this.#dispatch(route, request, response);
      },
    );
    this.#server.on("clientError", refuseUnreadable);
  }

  get openCalls(): number {
    return this.#relays.size;
  }

  /** Bytes of answers that the calls in progress hold in memory. */
  get bufferedBytes(): number {
    let sum = 0;
    for (const relay of this.#relays.all()) sum += relay.bufferedBytes;
    return sum;
  }

  /** Gives the port that was bound. */
  async listen(host: string, port: number): Promise<number> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", (cause) => {
        reject(
          new OutriggerError(
            "port-unavailable",
            `cannot listen on ${host}:${port}: ${cause.message}`,
            {
              origin: "user",
              hint: "Choose another port, or 0 for any free one.",
              cause,
            },
          ),
        );
      });
      this.#server.listen(port, host, resolve);
    });
    this.#sweep = setInterval(() => this.#keepAlive(), this.#options.keepAliveSweepMs);
    this.#sweep.unref();
    return (this.#server.address() as AddressInfo).port;
  }

  /** Accepts nothing new; lets running calls end for `graceMs`, then breaks them off. */
  async close(graceMs: number): Promise<void> {
    if (this.#isDraining) return;
    this.#isDraining = true;
    clearInterval(this.#sweep);
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    const timer = setTimeout(() => {
      for (const relay of this.#relays.all()) relay.destroy();
      this.#server.closeAllConnections();
    }, graceMs);
    await closed;
    clearTimeout(timer);
  }

  /** Resolves when every call has been recorded. */
  settled(): Promise<void> {
    if (this.#running === 0) return Promise.resolve();
    return new Promise((resolve) => this.#onSettled.push(resolve));
  }

  #noteServed(): void {
    this.#running -= 1;
    if (this.#running > 0) return;
    for (const resolve of this.#onSettled.splice(0)) resolve();
  }

  #keepAlive(): void {
    const nowMs = this.#options.context.nowMs();
    for (const relay of this.#relays.all()) relay.keepAlive(nowMs);
  }

  #dispatch(
    route: Exclude<Route, { readonly kind: "control" }>,
    request: IncomingMessage,
    response: ServerResponse,
  ): void {
    if (this.#isDraining) response.shouldKeepAlive = false;
    if (route.kind === "probe") {
      response.writeHead(200, { "content-length": "0" }).end();
      return;
    }
    const reply = new HarnessReply(response);
    // Codex tries a WebSocket first and falls back to HTTP on 426. Another protocol that a client
    // offers (Java's asks for HTTP/2 with its first request) may be ignored, and is.
    if (request.headers.upgrade?.toLowerCase() === "websocket") {
      writeReply(reply, refuseWebSocket());
      return;
    }
    if (route.kind === "refused") {
      const { status, dialect, message } = route;
      this.#refuse(reply, dialect, { status, reason: "unknown-route", message });
      request.resume();
      return;
    }
    this.#running += 1;
    // One call that goes wrong in a way that nobody thought of must not end all others.
    void this.#serve(route, request, reply)
      .catch(() => reply.breakOff())
      .finally(() => this.#noteServed());
  }

  async #serve(route: CallRoute, request: IncomingMessage, reply: HarnessReply): Promise<void> {
    const { context, identity, awaitCapacity } = this.#options;
    const receivedAtMs = context.nowMs();
    const { maxRequestBytes } = context.limits;
    const read = await readBody(request, maxRequestBytes);
    if (read.kind !== "read") {
      this.#refuseBody(route, read, reply);
      return;
    }
    let { body } = read;
    const encoding = request.headers["content-encoding"];
    if (encoding !== undefined) {
      const decoded = await decodeRequestBody(body, encoding, maxRequestBytes);
      if (decoded.kind !== "decoded") {
        this.#refuseEncoded(route, decoded, reply);
        return;
      }
      body = decoded.body;
    }
    if (this.#isDraining) {
      this.#refuse(reply, route.dialect, {
        status: 503,
        reason: "shutting-down",
        message: "the sidecar is shutting down",
      });
      return;
    }
    let decision = resolveIdentity(identity(), route.identity, request.headers);
    if (decision instanceof Promise) decision = await decision;
    if (decision.kind === "refused") {
      this.#refuseIdentity(route, decision, reply);
      return;
    }
    const capacity = awaitCapacity();
    if (capacity !== undefined) await capacity;
    if (reply.isClosed) return;
    if (route.kind === "count-tokens") {
      await this.#countTokens(decision.identity, body, reply);
      return;
    }
    if (route.kind === "passthrough") {
      relayPassthrough(context, route, decision.identity, request, body, reply);
      return;
    }
    await this.#relay(route, request, body, decision.identity, receivedAtMs, reply);
  }

  async #relay(
    route: CallRoute,
    request: IncomingMessage,
    body: Buffer,
    identity: Identity,
    receivedAtMs: number,
    reply: HarnessReply,
  ): Promise<void> {
    const { context } = this.#options;
    const requestId = context.newId("call_");
    const key = `${identity.rolloutId}\n${identity.attemptId}\n${route.path}`;
    const isMarked =
      context.capture().deduplicatesRetries &&
      (context.retriesAlwaysMarked || isMarkedRetry(request.headers["x-stainless-retry-count"]));
    const retry = context.recent.decide(key, body, isMarked);
    if (retry.kind === "join") {
      retry.earlier.join({ requestId, receivedAtMs, reply });
      return;
    }
    if (retry.kind === "replay") {
      await replay(context, key, retry.earlier, { requestId, receivedAtMs, reply });
      return;
    }
    const relay = new CallRelay(
      context,
      {
        requestId,
        dialect: dialectsByName[route.dialect],
        query: route.query,
        rawHeaders: request.rawHeaders,
        headers: request.headers,
        body,
        identity,
        receivedAtMs,
        retryOf: retry.kind === "again" ? retry.earlier.requestId : undefined,
      },
      reply,
    );
    const noteEnd = context.recent.add(key, relay);
    this.#relays.add(relay);
    await relay.run();
    this.#relays.delete(relay);
    noteEnd(relay.keptBytes);
  }

  async #countTokens(identity: Identity, body: Buffer, reply: HarnessReply): Promise<void> {
    const gone = new AbortController();
    reply.onClosed = () => gone.abort();
    writeReply(reply, await countTokens(this.#options.context, identity, body, gone.signal));
  }

  #refuseBody(
    route: CallRoute,
    read: Exclude<BodyRead, { readonly kind: "read" }>,
    reply: HarnessReply,
  ): void {
    if (read.kind === "aborted") return;
    reply.closeConnectionAfter();
    this.#refuseTooLarge(route, reply);
  }

  #refuseEncoded(
    route: CallRoute,
    decoded: Exclude<DecodedBody, { readonly kind: "decoded" }>,
    reply: HarnessReply,
  ): void {
    if (decoded.kind === "too-large") {
      this.#refuseTooLarge(route, reply);
      return;
    }
    const { encoding } = decoded;
    const accepted = acceptedEncodings.join(", ");
    const error =
      decoded.kind === "unsupported"
        ? {
            status: 415,
            reason: "unsupported-encoding",
            message: `the sidecar cannot read a request body encoded as ${encoding.slice(0, 50)}; it reads ${accepted}`,
          }
        : {
            status: 400,
            reason: "broken-encoding",
            message: `the request body is not whole or not ${encoding}: ${decoded.message}`,
          };
    this.#refuse(reply, route.dialect, error, { "accept-encoding": accepted });
  }

  #refuseTooLarge(route: CallRoute, reply: HarnessReply): void {
    const { maxRequestBytes } = this.#options.context.limits;
    this.#refuse(reply, route.dialect, {
      status: 413,
      reason: "request-too-large",
      message: `the request is larger than ${maxRequestBytes} bytes (limits.maxRequestBytes)`,
    });
  }

  #refuseIdentity(
    route: CallRoute,
    decision: Extract<IdentityDecision, { readonly kind: "refused" }>,
    reply: HarnessReply,
  ): void {
    const { status, reason, message } = decision.refusal;
    this.#options.onUnknown({ status, reason, dialect: route.dialect });
    this.#refuse(reply, route.dialect, { status, reason, message });
  }

  #refuse(
    reply: HarnessReply,
    dialect: DialectName,
    error: DialectError,
    headers: Readonly<Record<string, string>> = {},
  ): void {
    this.#options.onRefusal(error.reason);
    const encoded = dialectsByName[dialect].encodeError(error);
    writeReply(reply, { ...encoded, headers: { ...encoded.headers, ...headers } });
  }
}

/** Writes the kept answer again; its record says whose sampling it is. */
async function replay(
  context: RelayContext,
  key: string,
  earlier: RetriableCall,
  request: {
    readonly requestId: string;
    readonly receivedAtMs: number;
    readonly reply: HarnessReply;
  },
): Promise<void> {
  const { answer, finished } = earlier;
  const { requestId, receivedAtMs, reply } = request;
  if (answer === undefined || finished === undefined) return;
  const closed = new Promise<void>((resolve) => {
    reply.onClosed = resolve;
  });
  reply.head(answer.status, answer.headers);
  for (const chunk of answer.chunks) reply.write(chunk);
  reply.end();
  if (!reply.isClosed) await closed;
  const delivered = reply.isDelivered;
  if (delivered) context.recent.forget(key, earlier);
  const finishedAtMs = context.nowMs();
  context.record(replayRecord(finished, { requestId, delivered, receivedAtMs, finishedAtMs }));
}

function isMarkedRetry(count: string | string[] | undefined): boolean {
  return typeof count === "string" && Number(count) > 0;
}
