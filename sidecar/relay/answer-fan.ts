import type { HarnessReply } from "./harness-reply.ts";

/** What was answered so far, for a harness that asks again; dropped beyond `maxBytes`. */
export interface AnswerLog {
  readonly status: number;
  readonly headers: readonly string[];
  readonly chunks: readonly Buffer[];
}

/**
 * Writes one answer to the harness that asked, and to those of its retries that joined. Keeps the
 * answer for later joiners up to `maxLogBytes`; a longer one can no longer be joined.
 */
export class AnswerFan {
  readonly #maxLogBytes: number;
  readonly #replies: HarnessReply[] = [];
  #chunks: Buffer[] | undefined;
  #logBytes = 0;
  #head: { status: number; headers: readonly string[]; message: string | undefined } | undefined;
  #end: "open" | "ended" | "broken" = "open";
  lastWriteAtMs = 0;
  /** Every harness has gone away, or has got all. */
  onAllClosed: (() => void) | undefined;
  onDrain: (() => void) | undefined;

  /** `maxLogBytes` 0 keeps nothing. */
  constructor(maxLogBytes: number) {
    this.#maxLogBytes = maxLogBytes;
    this.#chunks = maxLogBytes > 0 ? [] : undefined;
  }

  get hasHead(): boolean {
    return this.#head !== undefined;
  }

  get isEnded(): boolean {
    return this.#end !== "open";
  }

  get isAllClosed(): boolean {
    return this.#replies.every((reply) => reply.isClosed);
  }

  /** Held in memory: waiting for harnesses to read, and kept for retries. */
  get bufferedBytes(): number {
    const kept = this.#chunks === undefined ? 0 : this.#logBytes;
    return this.#replies.reduce((sum, reply) => sum + reply.bufferedBytes, kept);
  }

  get canJoin(): boolean {
    return this.#chunks !== undefined && this.#end !== "broken";
  }

  /** The whole answer, when it ended cleanly and was short enough to keep. */
  get log(): AnswerLog | undefined {
    if (this.#end !== "ended" || this.#head === undefined || this.#chunks === undefined)
      return undefined;
    return { status: this.#head.status, headers: this.#head.headers, chunks: this.#chunks };
  }

  forgetLog(): void {
    this.#chunks = undefined;
  }

  /** All of them are closed. */
  releaseReplies(): void {
    this.#replies.length = 0;
  }

  join(reply: HarnessReply): void {
    this.#replies.push(reply);
    reply.onClosed = () => {
      reply.onSettled?.();
      if (this.isAllClosed) this.onAllClosed?.();
      else this.#noteDrain();
    };
    reply.onDrain = () => this.#noteDrain();
    if (reply.isClosed) {
      reply.onClosed();
      return;
    }
    if (this.#head !== undefined) {
      reply.head(this.#head.status, this.#head.headers, this.#head.message);
      for (const chunk of this.#chunks ?? []) reply.write(chunk);
      if (this.#end === "ended") reply.end();
    }
  }

  head(status: number, headers: readonly string[], message?: string): void {
    if (this.#head !== undefined) return;
    this.#head = { status, headers, message };
    for (const reply of this.#replies) reply.head(status, headers, message);
  }

  flushHead(): void {
    for (const reply of this.#replies) reply.flushHead();
  }

  /** False when some harness reads more slowly than this writes; `onDrain` follows. */
  write(bytes: Buffer): boolean {
    if (bytes.length === 0 || this.#end !== "open") return true;
    this.#keep(bytes);
    let isFlowing = true;
    for (const reply of this.#replies) isFlowing = reply.write(bytes) && isFlowing;
    return isFlowing;
  }

  end(bytes?: Buffer): void {
    if (this.#end !== "open") return;
    this.#end = "ended";
    if (bytes !== undefined) this.#keep(bytes);
    for (const reply of this.#replies) reply.end(bytes);
  }

  breakOff(bytes?: Buffer): void {
    if (this.#end !== "open") return;
    this.#end = "broken";
    for (const reply of this.#replies) reply.breakOff(bytes);
  }

  #keep(bytes: Buffer): void {
    if (this.#chunks === undefined) return;
    this.#logBytes += bytes.length;
    if (this.#logBytes > this.#maxLogBytes) this.#chunks = undefined;
    else this.#chunks.push(bytes);
  }

  #noteDrain(): void {
    if (this.#replies.every((reply) => reply.isClosed || !reply.needsDrain)) this.onDrain?.();
  }
}
