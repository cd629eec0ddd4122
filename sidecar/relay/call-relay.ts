import type { IncomingHttpHeaders } from "node:http";
import type { Rostered } from "../../core/roster.ts";
import type { FinishedCall } from "../capture/finished-call.ts";
import type {
  Dialect,
  DialectError,
  DialectStream,
  PlannedCall,
  RequestSettings,
} from "../dialects/dialect.ts";
import type { Passage } from "../gate/gate.ts";
import { engineRequestHeaders } from "../http/relay-headers.ts";
import type { Identity } from "../identity/identity.ts";
import type { EarlierCall } from "../retries/decide-retry.ts";
import type { Engine } from "../upstream/engine.ts";
import { AnswerFan, type AnswerLog } from "./answer-fan.ts";
import { callRecord, replayRecord } from "./call-record.ts";
import { type AttemptOutcome, EngineAttempt } from "./engine-attempt.ts";
import type { HarnessReply } from "./harness-reply.ts";
import type { RelayContext } from "./relay-context.ts";
import type { JoinedRequest, RetriableCall } from "./retriable-call.ts";
import { writeReply } from "./write-reply.ts";

export interface RelayedRequest {
  readonly requestId: string;
  readonly dialect: Dialect;
  readonly query: string;
  readonly rawHeaders: readonly string[];
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  readonly identity: Identity;
  readonly receivedAtMs: number;
  readonly retryOf: string | undefined;
}

/** Stale kept-alive connections and unreachable engines that one call may run into. */
const maxAttempts = 8;

const none: ReadonlySet<string> = new Set();

/**
 * One model call from the harness's request to its record: gate, engine, answer, capture. Waits for
 * the gate, the engine and the harness's reading; each of these ends when the harness goes away.
 */
export class CallRelay implements RetriableCall, Rostered {
  rosterPlace = -1;
  readonly #context: RelayContext;
  readonly #request: RelayedRequest;
  readonly #fan: AnswerFan;
  /** Until the call has ended: what is kept for a retry must not keep its connection. */
  #reply: HarnessReply | undefined;
  #isDelivered = false;
  /** Only a held call needs one. */
  #gone: AbortController | undefined;
  #isGone = false;
  #isBrokenOff = false;
  readonly #joined: JoinedRequest[] = [];
  #plan: PlannedCall | undefined;
  #engine: Engine | undefined;
  #attempt: EngineAttempt | undefined;
  #stream: DialectStream | undefined;
  #heldMs = 0;
  #retryAfterOutcome: AttemptOutcome | undefined;
  #errorReason: string | undefined;
  #finished: FinishedCall | undefined;
  #endedAtMs: number | undefined;

  constructor(context: RelayContext, request: RelayedRequest, reply: HarnessReply) {
    this.#context = context;
    this.#request = request;
    this.#reply = reply;
    this.#fan = new AnswerFan(
      context.capture().deduplicatesRetries ? context.limits.maxReplayBytes : 0,
    );
    this.#fan.onAllClosed = () => this.#noteAllClosed();
    this.#fan.join(reply);
  }

  get requestId(): string {
    return this.#request.requestId;
  }

  get body(): Buffer {
    return this.#request.body;
  }

  get finished(): FinishedCall | undefined {
    return this.#finished;
  }

  get answer(): AnswerLog | undefined {
    return this.#fan.log;
  }

  get state(): EarlierCall["state"] {
    const endedAtMs = this.#endedAtMs;
    if (endedAtMs === undefined) {
      return { kind: "in-flight", canJoin: !this.#isGone && this.#fan.canJoin };
    }
    if (this.#isDelivered || this.#finished === undefined) return { kind: "ended", endedAtMs };
    return { kind: "undelivered", canReplay: this.#fan.log !== undefined, endedAtMs };
  }

  get bufferedBytes(): number {
    return this.#fan.bufferedBytes;
  }

  get keptBytes(): number {
    return this.#fan.log?.chunks.reduce((sum, chunk) => sum + chunk.length, 0) ?? 0;
  }

  join(request: JoinedRequest): void {
    this.#joined.push(request);
    request.reply.onSettled = () => {
      if (this.#finished !== undefined) this.#recordReplay(request, this.#finished);
    };
    this.#fan.join(request.reply);
  }

  /** Resolves when the engine's part is over and the record is made. Never rejects. */
  async run(): Promise<void> {
    await this.#relay();
    const reply = this.#reply;
    if (reply?.isClosed === false) {
      await new Promise<void>((resolve) => {
        reply.onSettled = resolve;
      });
    }
    this.#isDelivered = reply?.isDelivered === true;
    this.#finish();
    this.#release();
  }

  /** A keep-alive of the dialect where the harness has heard nothing for long. */
  keepAlive(nowMs: number): void {
    const { keepAliveMs } = this.#context.limits;
    if (keepAliveMs === 0 || this.#fan.isEnded || this.#plan?.wantsStream !== true) return;
    if (nowMs - Math.max(this.#fan.lastWriteAtMs, this.#request.receivedAtMs) < keepAliveMs) return;
    const bytes = this.#openStream().keepAlive();
    if (bytes.length === 0) return;
    this.#fan.lastWriteAtMs = nowMs;
    this.#fan.head(200, [
      "content-type",
      "text/event-stream; charset=utf-8",
      "cache-control",
      "no-cache",
    ]);
    this.#fan.write(bytes);
  }

  /** The grace of a shutdown is over. */
  destroy(): void {
    this.#isBrokenOff = true;
    this.#noteAllClosed();
    this.#fan.breakOff();
  }

  async #relay(): Promise<void> {
    let excluded = none;
    for (let count = 0; count < maxAttempts; ) {
      const passage = this.#passAtOnce() ?? (await this.#pass());
      if (passage === undefined) return;
      const engine = this.#context.engines.choose(this.#request.identity.rolloutId, excluded);
      if (engine === undefined) {
        passage.leave();
        break;
      }
      const outcome = await this.#attemptOnce(engine, passage);
      if (outcome === undefined) return;
      // Each of these takes a pause of its own; the hold limit bounds them together.
      if (outcome.kind === "reissue") continue;
      count += 1;
      if (outcome.kind !== "unsent") {
        this.#conclude(outcome);
        return;
      }
      this.#retryAfterOutcome = outcome;
      if (outcome.isUnreachable) {
        this.#context.engines.reportUnreachable(engine);
        excluded = new Set(excluded).add(engine.url);
      }
    }
    this.#refuseUnreachable();
  }

  /** The usual call waits for nothing: the gate is open and the engines have been probed. */
  #passAtOnce(): Passage | undefined {
    const { gate, engines } = this.#context;
    if (this.#isGone || engines.isProbing) return undefined;
    return gate.tryEnter();
  }

  /** Through the gate; undefined when the call has ended before (refused, or harness gone). */
  async #pass(): Promise<Passage | undefined> {
    const { gate, engines } = this.#context;
    if (this.#context.capture().requiresCanary && engines.isProbing) {
      await engines.probed(this.#context.limits.canaryWaitMs);
    }
    if (this.#isGone) return undefined;
    const passage = gate.tryEnter();
    if (passage !== undefined) return passage;
    // Planned before it waits: only then can the dialect keep the harness's stream alive.
    const [engine] = engines.engines;
    if (engine !== undefined && this.#makePlan(engine) === undefined) return undefined;
    this.#gone ??= new AbortController();
    const admission = await gate.enter(this.#gone.signal, this.#heldMs);
    this.#heldMs = admission.heldMs;
    if (admission.kind === "admitted") return admission.passage;
    if (admission.kind === "hold-limit") {
      this.#errorReason = "gate-hold-limit";
      this.#fail({
        status: 429,
        reason: "gate-hold-limit",
        message: "model calls are paused for a weight update; try again",
        retryAfterSeconds: Math.max(1, Math.ceil(gate.retryAfterMs / 1000)),
      });
    }
    return undefined;
  }

  async #attemptOnce(engine: Engine, passage: Passage): Promise<AttemptOutcome | undefined> {
    const plan = this.#makePlan(engine);
    if (plan === undefined) {
      passage.leave();
      return undefined;
    }
    const { rawHeaders, query } = this.#request;
    const attempt = new EngineAttempt({
      engine,
      plan,
      path: `${engine.basePath}${plan.upstreamPath}${query}`,
      headers: engineRequestHeaders(rawHeaders, engine.apiKey),
      fan: this.#fan,
      stream: () => this.#openStream(),
      keepsText: this.#context.capture().capturesText,
      maxResponseBytes: this.#context.limits.maxResponseBytes,
      nowMs: this.#context.nowMs,
    });
    this.#engine = engine;
    this.#attempt = attempt;
    passage.onDrainLimit = () => attempt.abortForReissue();
    engine.inFlight += 1;
    attempt.start();
    const outcome = await attempt.outcome;
    engine.inFlight -= 1;
    passage.leave();
    if (outcome.kind === "answered") this.#context.engines.reportReachable(engine);
    return outcome;
  }

  #makePlan(engine: Engine): PlannedCall | undefined {
    const { dialect, body, identity, requestId } = this.#request;
    const { trainOverrides, evalOverrides } = this.#context.capture();
    const plan = dialect.planCall(body, {
      engine: engine.profile,
      capture: true,
      ...(engine.model === undefined ? {} : { model: engine.model }),
      sampling: withSalt(
        identity.mode === "train" ? trainOverrides : evalOverrides,
        engine.cacheSalt,
      ),
      translation: this.#context.translation,
      requestId,
      newId: this.#context.newId,
      nowMs: this.#context.nowMs,
    });
    if (plan.kind === "planned") {
      this.#plan = plan;
      return plan;
    }
    this.#errorReason = "request-refused";
    this.#context.noteRefusal(this.#errorReason);
    writeReply(this.#fan, plan.reply);
    return undefined;
  }

  #openStream(): DialectStream {
    this.#stream ??= (this.#plan as PlannedCall).openStream();
    return this.#stream;
  }

  #conclude(outcome: AttemptOutcome): void {
    if (outcome.kind === "aborted")
      this.#errorReason = this.#isBrokenOff ? "shutting-down" : "harness-aborted";
    if (outcome.kind !== "broken") return;
    this.#errorReason = outcome.reason;
    if (this.#fan.isEnded) return;
    if (outcome.reason === "engine-timeout" && !this.#fan.hasHead) {
      this.#fail({ status: 504, reason: outcome.reason, message: outcome.message });
    } else this.#breakOff(outcome.message);
  }

  /** A reset of the engine's reaches the harness as one, in its dialect's way once it streams. */
  #breakOff(message: string): void {
    this.#fan.breakOff(
      this.#fan.hasHead ? this.#openStream().fail({ kind: "reset", message }) : undefined,
    );
  }

  #refuseUnreachable(): void {
    const cause = this.#retryAfterOutcome;
    const detail = cause?.kind === "unsent" ? `: ${cause.message}` : "";
    const message =
      this.#context.engines.engines.length === 0
        ? "the sidecar knows no engine yet: its controller or --engine names one"
        : `no engine can be reached${detail}`;
    this.#errorReason = "engine-unreachable";
    this.#fail({ status: 503, reason: "engine-unreachable", message, retryAfterSeconds: 1 });
  }

  #fail(error: DialectError): void {
    if (this.#attempt?.sentAtMs === undefined) this.#context.noteRefusal(error.reason);
    if (this.#fan.hasHead) {
      this.#fan.breakOff(this.#openStream().fail({ kind: "error", error }));
      return;
    }
    writeReply(this.#fan, this.#request.dialect.encodeError(error));
  }

  #noteAllClosed(): void {
    this.#isGone = true;
    this.#attempt?.abort();
    this.#gone?.abort();
  }

  #finish(): void {
    this.#endedAtMs = this.#context.nowMs();
    const attempt = this.#attempt;
    // A call that no engine saw is no call: the harness was told so, and asks again.
    if (attempt?.sentAtMs === undefined) return;
    const finished = callRecord({
      request: this.#request,
      engine: this.#engine as Engine,
      plan: this.#plan as PlannedCall,
      attempt,
      capture: this.#context.capture(),
      isDelivered: this.#isDelivered,
      errorReason: this.#errorReason,
      heldMs: this.#heldMs,
      finishedAtMs: this.#context.nowMs(),
    });
    this.#finished = finished;
    // A delivered answer is never replayed.
    if (this.#isDelivered) this.#fan.forgetLog();
    this.#context.record(finished);
    for (const request of this.#joined) {
      if (request.reply.isClosed) this.#recordReplay(request, finished);
    }
  }

  /** For its retries an ended call is its body, its answer if undelivered, and its record. */
  #release(): void {
    this.#reply = undefined;
    this.#attempt = undefined;
    this.#stream = undefined;
    this.#plan = undefined;
    if (this.#joined.length > 0) return;
    this.#fan.releaseReplies();
    if (this.#isDelivered) this.#finished = undefined;
  }

  #recordReplay(request: JoinedRequest, original: FinishedCall): void {
    this.#context.record(
      replayRecord(original, {
        requestId: request.requestId,
        delivered: request.reply.isDelivered,
        receivedAtMs: request.receivedAtMs,
        finishedAtMs: this.#context.nowMs(),
      }),
    );
  }
}

/** With a salt a prefix cache never answers with what another policy version has computed. */
function withSalt(
  overrides: NonNullable<RequestSettings["sampling"]>,
  cacheSalt: string | undefined,
): NonNullable<RequestSettings["sampling"]> {
  return cacheSalt === undefined ? overrides : { ...overrides, cache_salt: cacheSalt };
}
