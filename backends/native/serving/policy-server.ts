import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { Logger } from "../../../runtime/log.ts";
import { hasBearerKey } from "../bearer-key.ts";
import { errorResponse } from "./error-response.ts";
import { type Handler, sendJson, writeEvent } from "./http-exchange.ts";
import { type PolicyRoutesOptions, policyRoutes } from "./policy-routes.ts";

export interface PolicyServerOptions extends PolicyRoutesOptions {
  readonly host: string;
  /** 0 asks for a free one. */
  readonly port: number;
  readonly log: Logger;
  /** Callers must send `Authorization: Bearer KEY`; undefined asks for nothing. */
  readonly apiKey?: string | undefined;
}

export interface PolicyServer {
  /** Up to and including `/v1`. */
  readonly url: string;
  readonly port: number;
  /** Stops listening and lets running responses finish. */
  close(): Promise<void>;
  destroy(): void;
}

/**
 * Serves the policy: OpenAI chat completions and completions with vLLM's extra fields, `/v1/models`,
 * `/tokenize`, `/healthz`. A client that goes away frees its sequences before the next step. A slow
 * reader costs at most its own response in memory.
 */
export async function openPolicyServer(options: PolicyServerOptions): Promise<PolicyServer> {
  const routes = policyRoutes(options);
  const server = createServer((request, response) => {
    void answer(routes, request, response, options);
  });
  // Responses may think for minutes before their first byte; clients set their own limits.
  server.requestTimeout = 0;
  server.headersTimeout = 60_000;
  server.keepAliveTimeout = 75_000;
  await listen(server, options.host, options.port);
  const { port } = server.address() as AddressInfo;
  const host = options.host.includes(":") ? `[${options.host}]` : options.host;
  return {
    url: `http://${host}:${port}/v1`,
    port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeIdleConnections();
      }),
    destroy: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (cause: NodeJS.ErrnoException) => {
      reject(
        new OutriggerError(
          "port-unavailable",
          `cannot listen on ${host}:${port}: ${cause.message}`,
          { origin: "user", hint: "Choose another port, or 0 for any free one.", cause },
        ),
      );
    });
    server.listen(port, host, resolve);
  });
}

async function answer(
  routes: ReadonlyMap<string, Handler>,
  request: IncomingMessage,
  response: ServerResponse,
  { log, apiKey }: Pick<PolicyServerOptions, "log" | "apiKey">,
): Promise<void> {
  const abort = new AbortController();
  response.on("close", () => {
    if (!response.writableFinished) abort.abort(new Error("the client went away"));
  });
  // A broken pipe shows as `close`; without a listener it would end the process.
  response.on("error", () => abort.abort(new Error("the client went away")));
  const path = (request.url ?? "/").split("?", 1)[0] as string;
  const handler = routes.get(`${request.method} ${path}`);
  try {
    if (handler === undefined) {
      throw new OutriggerError("not-found", `${request.method} ${path} is not served here`, {
        origin: "harness",
      });
    }
    if (!path.startsWith("/health")) checkKey(request, apiKey);
    await handler({ request, response, signal: abort.signal });
  } catch (error) {
    if (abort.signal.aborted) return;
    const { status, headers, body } = errorResponse(error);
    if (status === 500) log.error({ err: error, path }, "request failed");
    if (response.headersSent) {
      writeEvent(response, body);
      response.end("data: [DONE]\n\n");
    } else sendJson(response, status, body, headers);
  }
}

function checkKey(request: IncomingMessage, apiKey: string | undefined): void {
  if (apiKey === undefined || hasBearerKey(request.headers.authorization, apiKey)) return;
  throw new OutriggerError("unauthenticated", "the API key is missing or wrong", {
    origin: "user",
  });
}
