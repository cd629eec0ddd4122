import type { Transform } from "node:stream";
import type { StreamMode } from "../capture/finished-call.ts";
import { type CallCapture, createCallCapture } from "../dialects/call-capture.ts";
import type { ChunkScan } from "../dialects/chunk-scan.ts";
import type { DialectStream, PlannedCall } from "../dialects/dialect.ts";
import { readContextOverflow, readErrorBody } from "../dialects/read-engine-error.ts";
import { openBodyDecoder } from "../http/body-decoder.ts";
import { harnessResponseHeaders, rawHeader } from "../http/relay-headers.ts";
import type { SseBlock } from "../sse/sse-block.ts";
import { createSseDecoder, type SseDecoder } from "../sse/sse-decoder.ts";
import type { Engine } from "../upstream/engine.ts";
import {
  type ExchangeFailure,
  type ExchangeListener,
  UpstreamExchange,
} from "../upstream/upstream-exchange.ts";
import type { AnswerFan } from "./answer-fan.ts";

export type AttemptOutcome =
  /** The engine's answer, or its error, was relayed to its end. */
  | { readonly kind: "answered" }
  /** The engine never saw it, or closed a kept-alive connection: it may be sent again. */
  | { readonly kind: "unsent"; readonly isUnreachable: boolean; readonly message: string }
  /** Broken after the engine saw it: the harness sees it break too. */
  | { readonly kind: "broken"; readonly reason: string; readonly message: string }
  | { readonly kind: "aborted" }
  /** Given up at the drain limit of a pause, before any byte reached the harness. */
  | { readonly kind: "reissue" };

export interface AttemptSetup {
  readonly engine: Engine;
  readonly plan: PlannedCall;
  readonly path: string;
  readonly headers: string[];
  readonly fan: AnswerFan;
  /** The one stream of this call: a keep-alive may have opened it before this attempt. */
  readonly stream: () => DialectStream;
  readonly keepsText: boolean;
  readonly maxResponseBytes: number;
  readonly nowMs: () => number;
}

/** How long an engine may take to end a response whose last event it has sent. */
const engineEndGraceMs = 1_000;

/** Bytes of an engine's error that are kept for the record. */
const maxErrorBytes = 64 * 1024;

/**
 * One request to one engine and its answer on the way to the harness: written first, captured
 * after. Reads no faster than the harness does.
 */
export class EngineAttempt implements ExchangeListener {
  readonly #setup: AttemptSetup;
  readonly #exchange = new UpstreamExchange(this);
  readonly #settle: (outcome: AttemptOutcome) => void;
  readonly outcome: Promise<AttemptOutcome>;
  readonly capture: CallCapture;
  #stream: DialectStream | undefined;
  #decoder: SseDecoder | undefined;
  #decompressor: Transform | undefined;
  #rawHeaders: readonly string[] = [];
  #statusMessage = "";
  #whole: Buffer[] = [];
  #wholeBytes = 0;
  #isSettled = false;
  #isStreamDone = false;
  readonly keepsText: boolean;
  status = 0;
  sentAtMs: number | undefined;
  firstByteAtMs: number | undefined;
  streamMode: StreamMode = "none";
  errorBody: Buffer | undefined;

  constructor(setup: AttemptSetup) {
    this.#setup = setup;
    this.keepsText = setup.keepsText;
    this.capture = createCallCapture({ keepsText: setup.keepsText });
    let settle: (outcome: AttemptOutcome) => void = () => undefined;
    this.outcome = new Promise((resolve) => {
      settle = resolve;
    });
    this.#settle = (outcome) => {
      if (this.#isSettled) return;
      this.#isSettled = true;
      this.#decompressor?.destroy();
      settle(outcome);
    };
  }

  start(): void {
    const { engine, plan, path, headers } = this.#setup;
    this.#setup.fan.onDrain = () => (this.#decompressor ?? this.#exchange).resume();
    this.#exchange.start(engine.pool, { method: "POST", path, headers, body: plan.upstreamBody });
  }

  /** True while nothing of an answer has been written for the harness. */
  get isSilent(): boolean {
    return !this.#isSettled && this.#decoder === undefined;
  }

  get isStreaming(): boolean {
    return this.#decoder !== undefined && !this.#isStreamDone;
  }

  /** The harness has gone away: the engine's request is closed at once. */
  abort(): void {
    if (this.#isSettled) return;
    if (this.#isStreamDone) {
      // The answer is whole. The engine may end its side, so that its connection stays usable.
      this.#settle({ kind: "answered" });
      setTimeout(() => this.#exchange.abort(), engineEndGraceMs).unref();
      return;
    }
    this.#exchange.abort();
    this.#settle({ kind: "aborted" });
  }

  /** Gives up for a later attempt; false when something has reached the harness. */
  abortForReissue(): boolean {
    if (!this.isSilent) return false;
    this.#exchange.abort();
    this.#settle({ kind: "reissue" });
    return true;
  }

  onSent(): void {
    this.sentAtMs = this.#setup.nowMs();
  }

  onHead(status: number, rawHeaders: readonly string[], statusMessage: string): void {
    this.status = status;
    this.#rawHeaders = rawHeaders;
    this.#statusMessage = statusMessage;
    const encoding = rawHeader(rawHeaders, "content-encoding");
    if (encoding !== undefined) this.#openDecompressor(encoding);
    const isEventStream = /^text\/event-stream/i.test(rawHeader(rawHeaders, "content-type") ?? "");
    if (status < 300 && isEventStream && this.#mayStream()) this.#beginStream();
  }

  /** Engines read `"stream": 1` as true too: their own dialects' streams are relayed as such. */
  #mayStream(): boolean {
    const { upstreamStreams, wantsStream } = this.#setup.plan;
    return upstreamStreams || (!wantsStream && !this.#isTranslated);
  }

  get #isTranslated(): boolean {
    const { dialect } = this.#setup.plan;
    return dialect === "messages" || dialect === "responses";
  }

  onBytes(chunk: Buffer): void {
    this.firstByteAtMs ??= this.#setup.nowMs();
    if (this.#decompressor === undefined) this.#take(chunk);
    else if (!this.#decompressor.write(chunk)) this.#exchange.pause();
  }

  onEnd(): void {
    if (this.#decompressor === undefined) this.#finish();
    else this.#decompressor.end();
  }

  onFailure(failure: ExchangeFailure): void {
    const { engine, fan } = this.#setup;
    const { message } = failure;
    if (failure.kind === "connect" || failure.kind === "stale-socket") {
      this.#settle({ kind: "unsent", isUnreachable: failure.kind === "connect", message });
      return;
    }
    const reason = failure.kind === "timeout" ? "engine-timeout" : "engine-reset";
    const text = `the engine ${engine.url} broke off its answer (${message})`;
    if (this.#isStreamDone) {
      this.#settle({ kind: "answered" });
      return;
    }
    if (this.#decoder !== undefined) fan.breakOff(this.#failStream(text));
    this.#settle({ kind: "broken", reason, message: text });
  }

  #openDecompressor(encoding: string): void {
    const decompressor = openBodyDecoder(encoding);
    if (decompressor === undefined) return;
    this.#decompressor = decompressor;
    decompressor.on("data", (chunk: Buffer) => this.#take(chunk));
    decompressor.on("end", () => this.#finish());
    decompressor.on("drain", () => this.#exchange.resume());
    decompressor.on("error", (error) => {
      this.#exchange.abort();
      this.onFailure({ kind: "reset", message: error.message });
    });
  }

  #beginStream(): void {
    const { fan } = this.#setup;
    this.streamMode = "relayed";
    this.#decoder = createSseDecoder();
    this.#stream = this.#setup.stream();
    if (fan.hasHead) return;
    const decoded = this.#decompressor !== undefined;
    fan.head(
      this.status,
      harnessResponseHeaders(this.#rawHeaders, { decoded }),
      this.#statusMessage,
    );
    fan.flushHead();
  }

  #take(bytes: Buffer): void {
    if (this.#decoder !== undefined) {
      this.#relay(bytes);
      return;
    }
    this.#wholeBytes += bytes.length;
    if (this.#wholeBytes > this.#setup.maxResponseBytes) {
      this.#exchange.abort();
      this.onFailure({ kind: "reset", message: "the answer is larger than maxResponseBytes" });
    } else this.#whole.push(bytes);
  }

  /** The hot path: one engine chunk in, its events out, then the capture. */
  #relay(bytes: Buffer): void {
    let blocks: SseBlock[];
    try {
      blocks = (this.#decoder as SseDecoder).push(bytes);
    } catch (error) {
      this.#exchange.abort();
      this.onFailure({ kind: "reset", message: (error as Error).message });
      return;
    }
    // A decompressor that is paused fills up and then pauses the exchange itself.
    if (!this.#writeBlocks(blocks)) (this.#decompressor ?? this.#exchange).pause();
    for (const block of blocks) {
      this.capture.addBlock(block);
    }
  }

  #writeBlocks(blocks: readonly SseBlock[]): boolean {
    const { fan, nowMs } = this.#setup;
    const stream = this.#stream as DialectStream;
    const [first] = blocks;
    if (first === undefined) return true;
    const bytes =
      blocks.length === 1
        ? stream.push(first)
        : Buffer.concat(blocks.map((block) => stream.push(block)));
    if (stream.outcome === "failed") {
      // The engine said so itself; what follows is not part of an answer.
      this.#isStreamDone = true;
      fan.breakOff(bytes);
      return true;
    }
    if (bytes.length === 0) return true;
    fan.lastWriteAtMs = nowMs();
    if (stream.outcome === "completed") {
      this.#isStreamDone = true;
      fan.end(bytes);
      return true;
    }
    return fan.write(bytes);
  }

  #failStream(message: string): Buffer {
    return (this.#stream as DialectStream).fail({ kind: "reset", message });
  }

  #finish(): void {
    if (this.#decoder !== undefined) this.#finishStream();
    else {
      const [first] = this.#whole;
      const isOne = this.#whole.length === 1 && first !== undefined;
      const body = isOne ? first : Buffer.concat(this.#whole, this.#wholeBytes);
      if (this.status < 300) this.#answerWhole(body);
      else this.#answerError(body);
    }
    this.#whole = [];
    this.#settle({ kind: "answered" });
  }

  #finishStream(): void {
    if (this.#isStreamDone) return;
    const { fan } = this.#setup;
    const tail = (this.#decoder as SseDecoder).end();
    if (tail !== null) {
      this.#writeBlocks([tail]);
      this.capture.addBlock(tail);
    }
    if (this.#isStreamDone) return;
    const stream = this.#stream as DialectStream;
    const bytes = stream.end();
    this.#isStreamDone = true;
    if (stream.outcome === "failed") fan.breakOff(bytes);
    else fan.end(bytes);
  }

  #answerWhole(body: Buffer): void {
    const { fan, plan } = this.#setup;
    // Already begun (keep-alives while it was held or silent), asked for without streaming, or
    // answered so all the same: what is translated must come in the form that was asked for.
    if (plan.wantsStream && (!plan.upstreamStreams || fan.hasHead || this.#isTranslated))
      this.#answerSynthesised(body);
    else {
      let scan: ChunkScan | undefined;
      const reply = plan.encodeResponse({ status: this.status, headers: {}, body }, (found) => {
        scan = found;
      });
      this.#writeWhole(reply.status, reply.headers, reply.body);
      this.capture.addBody(body, scan);
    }
  }

  #answerSynthesised(body: Buffer): void {
    const { fan } = this.#setup;
    this.streamMode = "synthesised";
    const stream = this.#setup.stream();
    const bytes = stream.pushWhole(body);
    const replace = { "content-type": "text/event-stream; charset=utf-8" };
    const decoded = this.#decompressor !== undefined;
    fan.head(200, harnessResponseHeaders(this.#rawHeaders, { decoded, replace }));
    if (stream.outcome === "failed") fan.breakOff(bytes);
    else fan.end(bytes);
    this.capture.addBody(body);
  }

  #answerError(body: Buffer): void {
    const { fan, plan } = this.#setup;
    this.errorBody = body.subarray(0, maxErrorBytes);
    const reply = plan.encodeEngineError({ status: this.status, headers: {}, body });
    if (!fan.hasHead) {
      this.#writeWhole(reply.status, reply.headers, reply.body);
      return;
    }
    // The head went out with a keep-alive: the error can only be said inside the stream.
    const { status } = this;
    const said = readErrorBody(body);
    // The one error that a harness acts on by its code, and by its words.
    const isOverflow = readContextOverflow(said) !== undefined;
    const reason = isOverflow ? "context_length_exceeded" : "engine-error";
    const message = `the engine answered ${status}: ${said.message.slice(0, 500)}`;
    const retryAfter = Number(rawHeader(this.#rawHeaders, "retry-after"));
    const error = {
      status,
      reason,
      message,
      ...(retryAfter > 0 ? { retryAfterSeconds: retryAfter } : {}),
    };
    fan.breakOff(this.#setup.stream().fail({ kind: "error", error }));
  }

  #writeWhole(status: number, replace: Readonly<Record<string, string>>, body: Buffer): void {
    const decoded = this.#decompressor !== undefined;
    // An answer that has no body by its status has no length either (RFC 9110 section 8.6).
    const isBodiless = (status === 204 || status === 304) && body.length === 0;
    const options = { decoded, replace, ...(isBodiless ? {} : { contentLength: body.length }) };
    const headers = harnessResponseHeaders(this.#rawHeaders, options);
    this.#setup.fan.head(status, headers, this.#statusMessage);
    this.#setup.fan.end(body);
  }
}
