/** Named for one connection only (RFC 9110 section 7.6.1), and what the relay sets itself. */
const hopByHop: ReadonlySet<string> = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "proxy-authenticate",
  "proxy-authorization",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Set by the sidecar for the engine, or meant for the sidecar alone. */
const notForEngine: ReadonlySet<string> = new Set([
  "host",
  "content-length",
  // What goes on is decoded.
  "content-encoding",
  "expect",
  "accept-encoding",
  // The harness's credential is a capability of ours or a secret of theirs: never forwarded.
  "authorization",
  "x-api-key",
  "api-key",
]);

/** What a header name means here; asked once per name and not once per header of every call. */
interface HeaderKind {
  readonly lower: string;
  readonly isForEngine: boolean;
  readonly isForHarness: boolean;
}

const kinds = new Map<string, HeaderKind>();
/** Names are the peers': more than any software sends are not remembered. */
const maxKinds = 1_024;

function kindOf(name: string): HeaderKind {
  const known = kinds.get(name);
  if (known !== undefined) return known;
  const lower = name.toLowerCase();
  const isHopByHop = hopByHop.has(lower);
  const kind: HeaderKind = {
    lower,
    isForEngine: !isHopByHop && !notForEngine.has(lower) && !lower.startsWith("x-outrigger-"),
    isForHarness: !isHopByHop && lower !== "content-length",
  };
  if (kinds.size < maxKinds) kinds.set(name, kind);
  return kind;
}

/**
 * Request headers for the engine: order, case and duplicates as the harness sent them, without
 * hop-by-hop headers, those that `Connection` names, and credentials.
 */
export function engineRequestHeaders(
  raw: readonly string[],
  apiKey: string | undefined,
  contentType?: string,
): string[] {
  const named = connectionNamed(raw);
  const headers: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] as string;
    const { lower, isForEngine } = kindOf(name);
    if (!isForEngine || named?.has(lower) === true) continue;
    if (contentType !== undefined && lower === "content-type") continue;
    headers.push(name, raw[index + 1] as string);
  }
  headers.push("accept-encoding", "identity");
  if (contentType !== undefined) headers.push("content-type", contentType);
  if (apiKey !== undefined && apiKey !== "") headers.push("authorization", `Bearer ${apiKey}`);
  return headers;
}

export interface HarnessHeaderOptions {
  /** The body's length when it is known before it is sent. */
  readonly contentLength?: number;
  /** The sidecar decoded the body, so its encoding no longer holds. */
  readonly decoded?: boolean;
  /** Headers that replace the engine's of the same (lower-case) name. */
  readonly replace?: Readonly<Record<string, string>>;
}

/** Response headers for the harness: as the engine sent them, without hop-by-hop ones. */
export function harnessResponseHeaders(
  raw: readonly string[],
  options: HarnessHeaderOptions = {},
): string[] {
  const named = connectionNamed(raw);
  const { replace } = options;
  const headers: string[] = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] as string;
    const { lower, isForHarness } = kindOf(name);
    if (!isForHarness || named?.has(lower) === true) continue;
    if (options.decoded === true && lower === "content-encoding") continue;
    if (replace !== undefined && lower in replace) continue;
    headers.push(name, raw[index + 1] as string);
  }
  for (const name in replace) {
    if (name !== "content-length") headers.push(name, replace[name] as string);
  }
  if (options.contentLength !== undefined)
    headers.push("content-length", `${options.contentLength}`);
  return headers;
}

/** The engine's raw header bytes as text; latin-1, as Node writes them back. */
export function decodeRawHeaders(raw: readonly (Buffer | string)[]): string[] {
  return raw.map((part) => (typeof part === "string" ? part : part.toString("latin1")));
}

/** First value of a header in a raw list; `name` in lower case. */
export function rawHeader(raw: readonly string[], name: string): string | undefined {
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const candidate = raw[index] as string;
    if (candidate.length === name.length && candidate.toLowerCase() === name) return raw[index + 1];
  }
  return undefined;
}

function connectionNamed(raw: readonly string[]): ReadonlySet<string> | undefined {
  let named: Set<string> | undefined;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] as string;
    if (name.length !== 10 || name.toLowerCase() !== "connection") continue;
    const value = raw[index + 1] as string;
    if (value === "keep-alive" || value === "close") continue;
    for (const part of value.split(",")) {
      const lower = part.trim().toLowerCase();
      if (lower === "keep-alive" || lower === "close" || lower === "") continue;
      named ??= new Set();
      named.add(lower);
    }
  }
  return named;
}
