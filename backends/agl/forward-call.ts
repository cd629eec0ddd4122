import { createHash } from "node:crypto";
import { Readable } from "node:stream";
import { Agent, request as sendRequest } from "undici";

export interface ForwardedCall {
  readonly sidecarUrls: readonly string[];
  readonly rolloutId: string;
  /** From `/proxy/` on, with the query. */
  readonly path: string;
  readonly headers: Headers;
  readonly body: Uint8Array;
  /** Capability of the attempt, scope `call`. */
  readonly token: string;
  readonly signal: AbortSignal;
}

/** Of one connection only, ours to set, or the caller's credential. */
const ownHeaders: ReadonlySet<string> = new Set([
  "accept-encoding",
  "authorization",
  "connection",
  "content-length",
  "expect",
  "host",
  "keep-alive",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "x-api-key",
]);

/** A held call waits for as long as the gate lets it; the gate's limit and the caller end it. */
const agent = new Agent({ headersTimeout: 0, bodyTimeout: 0 });

/**
 * Sends a model call on to a sidecar, byte for byte and streaming: for clients that know one address
 * only. A rollout always goes to the same sidecar while the set of sidecars stays.
 */
export async function forwardCall(call: ForwardedCall): Promise<Response> {
  const { sidecarUrls, rolloutId, path, body, token, signal } = call;
  const sorted = [...sidecarUrls].sort();
  const digest = createHash("sha256").update(rolloutId).digest().readUInt32BE(0);
  const base = sorted[digest % sorted.length] as string;
  const headers: Record<string, string> = {
    authorization: `Bearer ${token}`,
    "accept-encoding": "identity",
  };
  for (const [name, value] of call.headers) {
    if (!ownHeaders.has(name)) headers[name] = value;
  }
  const answer = await sendRequest(`${base.replace(/\/+$/, "")}${path}`, {
    method: "POST",
    headers,
    body,
    dispatcher: agent,
    signal,
  });
  const kept = new Headers();
  for (const [name, value] of Object.entries(answer.headers)) {
    if (value === undefined || ownHeaders.has(name)) continue;
    for (const one of Array.isArray(value) ? value : [value]) kept.append(name, one);
  }
  const stream = Readable.toWeb(answer.body) as unknown as ReadableStream<Uint8Array>;
  return new Response(stream, { status: answer.statusCode, headers: kept });
}
