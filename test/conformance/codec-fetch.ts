import type { Dialect, RequestSettings } from "../../sidecar/dialects/dialect.ts";
import { playScript } from "./play-script.ts";
import { relay, testSettings } from "./run-dialect.ts";
import type { EngineScript } from "./scripted-engine.ts";

/** What `fetch` is to an SDK, and the engine requests that came of it. */
export interface CodecFetch {
  readonly fetch: typeof globalThis.fetch;
  readonly engineRequests: Record<string, unknown>[];
}

/** An SDK's `fetch` that goes through a dialect to a script, without a network between. */
export function codecFetch(
  dialect: Dialect,
  script: EngineScript,
  change: Partial<RequestSettings> = {},
): CodecFetch {
  const engineRequests: Record<string, unknown>[] = [];
  const fetch: typeof globalThis.fetch = async (_input, init) => {
    const body = typeof init?.body === "string" ? init.body : "";
    const planned = dialect.planCall(Buffer.from(body), testSettings(change));
    if (planned.kind === "refused") {
      const { status, headers, body: refusal } = planned.reply;
      return new Response(new Uint8Array(refusal), { status, headers: { ...headers } });
    }
    engineRequests.push(JSON.parse(planned.upstreamBody.toString()) as Record<string, unknown>);
    const upstream = await playScript(script, planned.upstreamBody, planned.upstreamPath);
    if (!planned.wantsStream) {
      const reply = planned.encodeResponse({ status: 200, headers: {}, body: upstream });
      const headers = { "content-type": "application/json" };
      return new Response(new Uint8Array(reply.body), { status: reply.status, headers });
    }
    const stream = planned.openStream();
    const bytes = planned.upstreamStreams
      ? relay(stream, upstream, "eof", [5, 50])
      : stream.pushWhole(upstream).toString();
    return new Response(bytes, { status: 200, headers: { "content-type": "text/event-stream" } });
  };
  return { fetch, engineRequests };
}
