import type { Dispatcher } from "undici";
import { decodeRawHeaders } from "../http/relay-headers.ts";

/** How many requests a connection has carried; after the first it may be stale. */
export interface ServedSockets {
  served: number;
}

/** How an engine request ended without a whole answer. */
export type ExchangeFailure =
  /** No connection: the engine never saw the request. */
  | { readonly kind: "connect"; readonly message: string }
  /** A kept-alive connection that the engine had closed already; zero bytes of an answer. */
  | { readonly kind: "stale-socket"; readonly message: string }
  | { readonly kind: "reset"; readonly message: string }
  | { readonly kind: "timeout"; readonly message: string };

/**
 * Called in this order, each phase at most once; nothing after `onEnd`, `onFailure` or `abort`, but
 * `onFailure` after an `onEnd` that threw.
 */
export interface ExchangeListener {
  onSent(): void;
  onHead(status: number, rawHeaders: readonly string[], statusMessage: string): void;
  onBytes(chunk: Buffer): void;
  onEnd(): void;
  onFailure(failure: ExchangeFailure): void;
}

export interface ExchangeRequest {
  readonly method: "GET" | "POST" | "HEAD";
  readonly path: string;
  readonly headers: string[];
  readonly body: Buffer | null;
}

/** The pool wraps handlers; its options reach the client as they are. */
export interface ExchangeDispatchOptions extends Dispatcher.DispatchOptions {
  readonly exchange?: UpstreamExchange;
}

/**
 * One request to an engine. `abort` closes its connection at once in every phase: before it is
 * connected (then nothing is ever sent), before the response head, and in mid-stream.
 */
export class UpstreamExchange implements Dispatcher.DispatchHandler {
  readonly #listener: ExchangeListener;
  #controller: Dispatcher.DispatchController | undefined;
  #sockets: ServedSockets | undefined;
  #onReusedSocket = false;
  /** The engine has begun to answer: it has seen the request. */
  #hasBytes = false;
  #isOver = false;
  #isAborted = false;

  constructor(listener: ExchangeListener) {
    this.#listener = listener;
  }

  start(pool: Dispatcher, request: ExchangeRequest): void {
    try {
      const { method, path, headers, body } = request;
      const options: ExchangeDispatchOptions = { method, path, headers, body, exchange: this };
      pool.dispatch(options, this);
    } catch (error) {
      this.#fail({ kind: "connect", message: (error as Error).message });
    }
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  abort(): void {
    if (this.#isOver) return;
    const controller = this.#controller;
    this.#isAborted = true;
    this.#end();
    controller?.abort(new Error("the harness went away"));
  }

  pause(): void {
    this.#controller?.pause();
  }

  resume(): void {
    this.#controller?.resume();
  }

  /** Told by the pool which connection will carry this request. */
  bindSocket(sockets: ServedSockets): void {
    this.#sockets = sockets;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#isAborted) {
      controller.abort(new Error("the harness went away"));
      return;
    }
    if (this.#sockets !== undefined) {
      this.#onReusedSocket = this.#sockets.served > 0;
      this.#sockets.served += 1;
    }
    this.#listener.onSent();
  }

  /** At the first byte of an answer, also of an informational one or of a head that is cut off. */
  onResponseStarted(): void {
    this.#hasBytes = true;
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
    statusMessage?: string,
  ): void {
    if (this.#isOver || status < 200) return;
    const raw = (controller as { rawHeaders?: readonly (Buffer | string)[] | null }).rawHeaders;
    const list = raw == null ? flatten(headers) : decodeRawHeaders(raw);
    this.#listener.onHead(status, list, statusMessage ?? "");
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#isOver) this.#listener.onBytes(chunk);
  }

  onResponseEnd(): void {
    if (this.#isOver) return;
    this.#end();
    try {
      this.#listener.onEnd();
    } catch (error) {
      // undici would tell only its own connection: the harness would wait for ever.
      this.#listener.onFailure({ kind: "reset", message: (error as Error).message });
    }
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.#fail(this.#classify(error));
  }

  /**
   * Lets go of the connection: what is kept of a call for its retries would keep undici's request,
   * and with it every later one of the connection, from the garbage collector's quick pass.
   */
  #end(): void {
    this.#isOver = true;
    this.#controller = undefined;
  }

  #fail(failure: ExchangeFailure): void {
    if (this.#isOver) return;
    this.#end();
    this.#listener.onFailure(failure);
  }

  #classify(error: Error & { code?: string }): ExchangeFailure {
    const message = error.code === undefined ? error.message : `${error.code}: ${error.message}`;
    if (this.#controller === undefined) return { kind: "connect", message };
    if (error.code === "UND_ERR_HEADERS_TIMEOUT" || error.code === "UND_ERR_BODY_TIMEOUT")
      return { kind: "timeout", message };
    if (!this.#hasBytes && this.#onReusedSocket && isClosedSocket(error))
      return { kind: "stale-socket", message };
    return { kind: "reset", message };
  }
}

function isClosedSocket(error: Error & { code?: string }): boolean {
  return error.code === "ECONNRESET" || error.code === "EPIPE" || error.code === "UND_ERR_SOCKET";
}

function flatten(headers: Record<string, string | string[] | undefined>): string[] {
  return Object.entries(headers).flatMap(([name, value]) =>
    value === undefined
      ? []
      : Array.isArray(value)
        ? value.flatMap((v) => [name, v])
        : [name, value],
  );
}
