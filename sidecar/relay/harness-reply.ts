import type { ServerResponse } from "node:http";

/** Longer answers are not copied once more. */
const maxOneWrite = 16 * 1024;

/**
 * The response to one harness. `delivered` is true only when the last byte was flushed to a socket
 * that was still there. `onClosed` is called once, whichever way it ends.
 */
export class HarnessReply {
  readonly #response: ServerResponse;
  #isDelivered = false;
  #isClosed = false;
  #isComplete = false;
  #awaitsDrain = false;
  onClosed: (() => void) | undefined;
  /** For the owner of this reply, after `onClosed`. */
  onSettled: (() => void) | undefined;
  onDrain: (() => void) | undefined;

  constructor(response: ServerResponse) {
    this.#response = response;
    // Node takes the socket off the response before `finish` is heard. The response to a pipelined
    // request has none while it waits for its turn, and does not hear then that the harness went.
    const { socket } = response.req;
    const noteClosed = (): void => {
      if (this.#isClosed) return;
      this.#isClosed = true;
      if (isQueued) socket.off("close", noteClosed);
      this.onClosed?.();
    };
    const isQueued = response.socket === null;
    if (isQueued) socket.on("close", noteClosed);
    response.on("close", noteClosed);
    response.on("finish", () => {
      this.#isDelivered = this.#isComplete && !socket.destroyed;
    });
    // A write that fails is a harness that went away: `close` says so.
    response.on("error", ignore);
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get isDelivered(): boolean {
    return this.#isDelivered;
  }

  get hasHead(): boolean {
    return this.#response.headersSent;
  }

  get needsDrain(): boolean {
    return this.#response.writableNeedDrain;
  }

  get bufferedBytes(): number {
    return this.#response.writableLength;
  }

  /** `headers`: names and values in turn, order and duplicates kept. */
  head(status: number, headers: readonly string[], statusMessage?: string): void {
    if (this.#isClosed || this.#response.headersSent) return;
    if (hasHeader(headers, "date")) this.#response.sendDate = false;
    const list = headers as string[];
    if (statusMessage === undefined || statusMessage === "") this.#response.writeHead(status, list);
    else this.#response.writeHead(status, statusMessage, list);
  }

  /** The rest of the request is unread: the connection cannot carry another. */
  closeConnectionAfter(): void {
    this.#response.shouldKeepAlive = false;
  }

  /** Sends the head without waiting for a body byte. */
  flushHead(): void {
    if (!this.#isClosed) this.#response.flushHeaders();
  }

  /** False when the harness reads more slowly than the engine writes; `onDrain` follows. */
  write(bytes: Buffer): boolean {
    if (this.#isClosed || bytes.length === 0 || this.#response.write(bytes)) return true;
    if (!this.#awaitsDrain) {
      this.#awaitsDrain = true;
      this.#response.once("drain", () => {
        this.#awaitsDrain = false;
        this.onDrain?.();
      });
    }
    return false;
  }

  /** Ends it cleanly; after this, and only then, it can count as delivered. */
  end(bytes?: Buffer): void {
    if (this.#isClosed) return;
    this.#isComplete = true;
    if (bytes === undefined) this.#response.end();
    else if (bytes.length > maxOneWrite) this.#response.end(bytes);
    // Latin-1 is every byte as it is; Node sends a head and a text in one write, and no bytes so.
    else this.#response.end(bytes.toString("latin1"), "latin1");
  }

  /** A broken stream never gets a clean end: the socket is destroyed once `bytes` are flushed. */
  breakOff(bytes?: Buffer): void {
    if (this.#isClosed) return;
    const { socket } = this.#response;
    if (socket === null) this.#response.destroy();
    else if (!this.#response.headersSent) socket.resetAndDestroy();
    else if (bytes === undefined || bytes.length === 0) socket.destroySoon();
    else this.#response.write(bytes, () => socket.destroySoon());
  }
}

function hasHeader(headers: readonly string[], name: string): boolean {
  for (let index = 0; index < headers.length; index += 2) {
    const candidate = headers[index] as string;
    if (candidate.length === name.length && candidate.toLowerCase() === name) return true;
  }
  return false;
}

function ignore(): void {}
