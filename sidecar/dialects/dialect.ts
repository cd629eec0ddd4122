import type { SseBlock } from "../sse/sse-block.ts";
import type { ChunkScan } from "./chunk-scan.ts";
import type { JsonValue } from "./json-value.ts";

export type DialectName = "chat" | "completions" | "responses" | "messages";

/** What the engine behind the sidecar can do; the start-up probe says what is true. */
export interface EngineProfile {
  /** Which members ask for ids: `native` speaks as vLLM does. */
  readonly kind: "vllm" | "sglang" | "native";
  /** False: a streaming request is sent without `stream`, and the harness gets a synthetic one. */
  readonly streamsIds: boolean;
}

/** Where a harness dialect leaves room; each has one default, pinned in a test. */
export interface TranslationSettings {
  /** Role for the Responses dialect's `developer` messages. Default `system`. */
  readonly developerRole: "system" | "developer";
  /** Role for system messages after the first position. Default `system`. */
  readonly midConversationSystemRole: "system" | "user";
  /** Default `max_tokens` for Messages, `max_completion_tokens` for Responses. */
  readonly maxTokensMember: "max_tokens" | "max_completion_tokens" | undefined;
  /** How the Messages dialect's `thinking` and effort reach the engine. Default `drop` (recorded). */
  readonly reasoningMember: "drop" | "enable-thinking" | "reasoning-effort";
  /** Keep-alive of chat and text completions; strict clients choke on comments. Default `none`. */
  readonly chatKeepAlive: "none" | "comment";
}

export interface RequestSettings {
  readonly engine: EngineProfile;
  /** False: nothing is added to the request and nothing is taken from the response. */
  readonly capture: boolean;
  /** Model name to ask the engine for; undefined keeps the harness's. */
  readonly model?: string;
  /** The experiment's sampling overrides, by their chat completions names. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
  readonly translation?: Partial<TranslationSettings>;
  /** Id of this request; carried in opaque members of translated answers. */
  readonly requestId: string;
  /** `newId("msg_")` gives `msg_` and 24 random letters and digits. */
  readonly newId: (prefix: string) => string;
  readonly nowMs: () => number;
}

/** What the harness itself asked for, so that it is not taken away again. */
export interface ClientAsked {
  readonly logprobs: boolean;
  readonly tokenIds: boolean;
  /** `stream_options.include_usage`. */
  readonly usage: boolean;
}

/** A failure in the sidecar's own words, before it has a dialect. */
export interface DialectError {
  readonly status: number;
  /** Stable and kebab-case, e.g. `unknown-identity`, `gate-hold-limit`, `engine-unreachable`. */
  readonly reason: string;
  readonly message: string;
  /** Sent as `Retry-After`; a 429 or 503 always has one (1 when undefined). */
  readonly retryAfterSeconds?: number;
}

export interface EncodedReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
}

/** Why an upstream stream broke. `reset` covers everything that is not a message of the engine. */
export type StreamFailure =
  | { readonly kind: "reset"; readonly message: string }
  | { readonly kind: "error"; readonly error: DialectError };

/**
 * One streamed answer on its way to the harness. Every method returns the bytes to write now
 * (possibly none). After `outcome` is `failed` the caller writes them and destroys the socket:
 * a broken stream never gets a clean end. After `completed` it ends the response.
 */
export interface DialectStream {
  /** One block of the engine's event stream, in order. */
  push(block: SseBlock): Buffer;
  /** The whole answer of an engine that was asked without streaming. Ends the stream. */
  pushWhole(response: Buffer): Buffer;
  /** The engine ended its response cleanly. */
  end(): Buffer;
  fail(failure: StreamFailure): Buffer;
  /** Bytes that keep a silent stream alive, between events only; none where the dialect has none. */
  keepAlive(): Buffer;
  readonly outcome: "open" | "completed" | "failed";
  /** The bytes so far hold the whole answer: a harness that hangs up from here on is no abort. */
  readonly isAnswered: boolean;
  /** Oddities of the engine that were survived, e.g. `tool-call-without-name`; for the record. */
  readonly anomalies: readonly string[];
}

/** A request that goes to the engine. */
export interface PlannedCall {
  readonly kind: "planned";
  readonly dialect: DialectName;
  /** From the engine's root, e.g. `/v1/chat/completions`. */
  readonly upstreamPath: string;
  readonly upstreamBody: Buffer;
  /** As the harness named it; null where it did not. */
  readonly model: string | null;
  /** The harness wants an event stream. */
  readonly wantsStream: boolean;
  /** The engine is asked for an event stream (false for `streamsIds: false`: use `pushWhole`). */
  readonly upstreamStreams: boolean;
  readonly clientAsked: ClientAsked;
  /** Request parts that the engine's dialect cannot say, e.g. `tools[8] (web_search)`. */
  readonly dropped: readonly string[];
  /** Capture members were added; false when the body could not be read and went as it came. */
  readonly captured: boolean;
  /** What decides how tokens are drawn, as sent to the engine. */
  readonly samplingJson: string;
  openStream(): DialectStream;
  /**
   * A successful non-stream answer of the engine, for the harness. Never throws. Headers come back
   * as they were given but for `content-type`: `content-length` is the caller's. A dialect that
   * walks the bytes anyway says where their members stand.
   */
  encodeResponse(upstream: EncodedReply, onScan?: (scan: ChunkScan) => void): EncodedReply;
  /** An error answer of the engine; status and (where no translation is needed) bytes unchanged. */
  encodeEngineError(upstream: EncodedReply): EncodedReply;
}

/** A request that the dialect itself must refuse (the few cases that wire formats demand). */
export interface RefusedCall {
  readonly kind: "refused";
  readonly reply: EncodedReply;
}

/** One wire API that harnesses speak. Pure; total over arbitrary bytes. */
export interface Dialect {
  readonly name: DialectName;
  planCall(body: Buffer, settings: RequestSettings): PlannedCall | RefusedCall;
  /** A failure of the sidecar's own, in the dialect's error shape, before any byte was sent. */
  encodeError(error: DialectError): EncodedReply;
}
