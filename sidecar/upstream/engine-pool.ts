import { Client, type Dispatcher, Pool } from "undici";
import type { ExchangeDispatchOptions, ServedSockets } from "./upstream-exchange.ts";

export interface EnginePoolOptions {
  readonly connectTimeoutMs: number;
  /** Longest wait for the response head; 0 for no limit. */
  readonly firstByteTimeoutMs: number;
  /** Longest silence within a response; 0 for no limit. */
  readonly idleTimeoutMs: number;
}

/** Connections to one engine. A client has one connection at a time; the pool grows as needed. */
export function openEnginePool(origin: string, options: EnginePoolOptions): Pool {
  return new Pool(origin, {
    // No 300 s walls: a long prompt may take minutes to its first token.
    headersTimeout: options.firstByteTimeoutMs,
    bodyTimeout: options.idleTimeoutMs,
    connectTimeout: options.connectTimeoutMs,
    keepAliveTimeout: 4_000,
    pipelining: 1,
    // A model list or an answer with a 5 MB header does not exist; 64 KB of headers may.
    maxHeaderSize: 64 * 1024,
    factory: (url, clientOptions) => new CountingClient(url, clientOptions as Client.Options),
  });
}

class CountingClient extends Client {
  readonly #sockets: ServedSockets = { served: 0 };

  constructor(origin: URL | string, options: Client.Options) {
    super(origin, options);
    this.on("connect", () => {
      this.#sockets.served = 0;
    });
  }

  override dispatch(
    options: Dispatcher.DispatchOptions,
    handler: Dispatcher.DispatchHandler,
  ): boolean {
    const { exchange } = options as ExchangeDispatchOptions;
    exchange?.bindSocket(this.#sockets);
    return super.dispatch(options, handler);
  }
}
