import type { Engine } from "./engine.ts";
import { UpstreamExchange } from "./upstream-exchange.ts";

export type EngineAnswer =
  | {
      readonly kind: "answer";
      readonly status: number;
      readonly rawHeaders: readonly string[];
      readonly body: Buffer;
    }
  | { readonly kind: "unreachable"; readonly message: string };

/** One small request of the sidecar's own, whole answer in memory (at most `maxBytes`). */
export function askEngine(
  engine: Engine,
  request: { readonly method: "GET" | "POST"; readonly path: string; readonly body: Buffer | null },
  options: { readonly signal: AbortSignal; readonly timeoutMs: number; readonly maxBytes?: number },
): Promise<EngineAnswer> {
  const maxBytes = options.maxBytes ?? 4 * 1024 * 1024;
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    let status = 0;
    let rawHeaders: readonly string[] = [];
    const settle = (answer: EngineAnswer): void => {
      clearTimeout(timer);
      options.signal.removeEventListener("abort", onAbort);
      exchange.abort();
      resolve(answer);
    };
    const exchange = new UpstreamExchange({
      onSent: () => undefined,
      onHead: (code, headers) => {
        status = code;
        rawHeaders = headers;
      },
      onBytes: (chunk) => {
        bytes += chunk.length;
        if (bytes > maxBytes) settle({ kind: "unreachable", message: "the answer is too large" });
        else chunks.push(chunk);
      },
      onEnd: () => settle({ kind: "answer", status, rawHeaders, body: Buffer.concat(chunks) }),
      onFailure: ({ message }) => settle({ kind: "unreachable", message }),
    });
    const timer = setTimeout(
      () => settle({ kind: "unreachable", message: `no answer within ${options.timeoutMs} ms` }),
      options.timeoutMs,
    );
    const onAbort = (): void => settle({ kind: "unreachable", message: "stopped" });
    options.signal.addEventListener("abort", onAbort, { once: true });
    const headers = ["accept-encoding", "identity"];
    if (request.body !== null) headers.push("content-type", "application/json");
    if (engine.apiKey !== undefined) headers.push("authorization", `Bearer ${engine.apiKey}`);
    exchange.start(engine.pool, { ...request, headers });
  });
}
