import type { DialectName } from "../capture/finished-call.ts";

/** What a request line says about who is calling. */
export type PathIdentity =
  | { readonly kind: "none" }
  | { readonly kind: "token"; readonly token: string }
  | {
      readonly kind: "rollout";
      readonly rolloutId: string;
      readonly attemptId: string;
      readonly mode: "train" | "eval";
    };

export type Route =
  /** A model call to capture. `path` is what the engine would be asked without the sidecar. */
  | {
      readonly kind: "call";
      readonly dialect: DialectName;
      readonly path: string;
      readonly query: string;
      readonly identity: PathIdentity;
    }
  | {
      readonly kind: "count-tokens";
      readonly dialect: "messages";
      readonly path: string;
      readonly query: string;
      readonly identity: PathIdentity;
    }
  /** Relayed without capture: the model list. */
  | {
      readonly kind: "passthrough";
      readonly dialect: DialectName;
      readonly path: string;
      readonly query: string;
      readonly identity: PathIdentity;
    }
  /** `HEAD /`: Claude Code asks whether the base URL answers. */
  | { readonly kind: "probe" }
  /** Health, readiness, metrics. */
  | { readonly kind: "control"; readonly path: string }
  | {
      readonly kind: "refused";
      readonly status: 404 | 405;
      readonly dialect: DialectName;
      readonly message: string;
    };

const callDialects: ReadonlyMap<string, DialectName> = new Map([
  ["/v1/chat/completions", "chat"],
  ["/v1/completions", "completions"],
  ["/v1/responses", "responses"],
  ["/v1/messages", "messages"],
]);

const controlPaths: ReadonlySet<string> = new Set(["/healthz", "/readyz", "/metrics"]);
const none: PathIdentity = { kind: "none" };

const proxyPath =
  /^\/proxy\/rollout\/([^/]+)\/attempt\/([^/]+)\/mode\/(train|val)\/openai(\/v1\/(?:chat\/)?completions)$/;

/** Which of the sidecar's few routes a request line means; total over arbitrary input. */
export function routeRequest(method: string, target: string): Route {
  const url = withoutOrigin(target);
  const questionMark = url.indexOf("?");
  const fullPath = questionMark === -1 ? url : url.slice(0, questionMark);
  const query = questionMark === -1 ? "" : url.slice(questionMark);
  if (fullPath.startsWith("/r/")) {
    const end = fullPath.indexOf("/", 3);
    const token = decode(end === -1 ? fullPath.slice(3) : fullPath.slice(3, end));
    if (token === "") return refused(404, "chat", "the path names no rollout between /r/ and /");
    const rest = end === -1 ? "/" : fullPath.slice(end);
    return routePath(method, rest, query, { kind: "token", token });
  }
  if (fullPath.startsWith("/proxy/")) return routeProxyPath(method, fullPath, query);
  return routePath(method, fullPath, query, none);
}

function routePath(method: string, path: string, query: string, identity: PathIdentity): Route {
  const dialect = callDialects.get(path);
  if (dialect !== undefined) {
    if (method === "POST") return { kind: "call", dialect, path, query, identity };
    return refused(405, dialect, `${method} is not allowed on ${path}; use POST`);
  }
  if (path === "/v1/messages/count_tokens" && method === "POST")
    return { kind: "count-tokens", dialect: "messages", path, query, identity };
  if ((path === "/v1/models" || isModelPath(path)) && method === "GET")
    return { kind: "passthrough", dialect: "chat", path, query, identity };
  if (
    (path === "/" || path === "/v1" || path === "/v1/") &&
    (method === "HEAD" || method === "GET")
  )
    return { kind: "probe" };
  if (controlPaths.has(path) && (method === "GET" || method === "HEAD"))
    return { kind: "control", path };
  return refused(
    404,
    dialectOfUnknown(path),
    `${method} ${path} is not served by the sidecar: its model routes are under /v1. A base URL ends in /v1 for OpenAI clients, and not for Anthropic's`,
  );
}

const dotSegment = /(?:[/\\]|%2f|%5c)(?:\.|%2e){1,2}(?=[/\\]|%2f|%5c|$)/i;

/** Names of models have slashes in them, but a name must not lead to another route of the engine. */
function isModelPath(path: string): boolean {
  return path.startsWith("/v1/models/") && !dotSegment.test(path);
}

/** A client that takes the sidecar for its proxy sends the whole URL (RFC 9112 section 3.2.2). */
function withoutOrigin(target: string): string {
  if (target.startsWith("/")) return target;
  const origin = /^https?:\/\/[^/?]*/i.exec(target)?.[0];
  if (origin === undefined) return target;
  const rest = target.slice(origin.length);
  return rest.startsWith("/") ? rest : `/${rest}`;
}

function routeProxyPath(method: string, path: string, query: string): Route {
  const match = proxyPath.exec(path);
  if (match === null)
    return refused(404, "chat", `unknown proxy path ${path.slice(0, 200)}: rollout, mode or route`);
  const [, rolloutId = "", attemptId = "", mode, rest = ""] = match;
  return routePath(method, rest, query, {
    kind: "rollout",
    rolloutId: decode(rolloutId),
    attemptId: decode(attemptId),
    mode: mode === "val" ? "eval" : "train",
  });
}

function refused(status: 404 | 405, dialect: DialectName, message: string): Route {
  return { kind: "refused", status, dialect, message };
}

function dialectOfUnknown(path: string): DialectName {
  if (path.startsWith("/v1/messages")) return "messages";
  return path.startsWith("/v1/responses") ? "responses" : "chat";
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
