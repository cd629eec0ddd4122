import { Agent, request } from "undici";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { linkedAbort } from "../../runtime/linked-abort.ts";
import type { Logger } from "../../runtime/log.ts";
import { sleep } from "../../runtime/sleep.ts";
import { decideFuture, decideSend, type HttpOutcome, type SendDecision } from "./decide-reply.ts";
import { decodeResult } from "./decode-result.ts";

export interface TinkerClientOptions {
  /** Up to, not including, `/api/v1`. */
  readonly url: string;
  /** Sent as `X-API-Key`. */
  readonly apiKey?: string | undefined;
  readonly log: Logger;
  /** How long a server that does not answer, or says "later", is tried. Default 60,000 ms. */
  readonly patienceMs?: number;
  /** First pause between tries; doubled up to 40 times itself. Default 50 ms. */
  readonly retryDelayMs?: number;
  /** How long one `retrieve_future` may be held before it is asked anew. Default 45,000 ms. */
  readonly pollMs?: number;
  readonly heartbeatMs?: number;
}

/** For what is asked first: a wrong address shows soon. */
const firstPatienceMs = 10_000;

/** What newer servers say results of samples and gradients in, whatever is asked for. */
const protobufType = "application/x-protobuf";

type Json = Readonly<Record<string, unknown>>;

/**
 * Calls of a Tinker server. Rejections are `OutriggerError`s of origin `backend`:
 * - `tinker-unreachable` (retryable): nothing was taken, for as long as the patience lasts;
 * - `tinker-outcome-unknown` (retryable): a call may have been taken or has run, and its result is
 *   lost; what it did must be undone before it is made again;
 * - `tinker-not-found`: 404, the server does not know a model, session or path (any more);
 * - `tinker-conflict`: 409, the sequence id is taken by another body, or a name exists already;
 * - `tinker-refused`: another 4xx; `tinker-failed`: the call ran and failed.
 */
export interface TinkerClient {
  get(path: string, signal?: AbortSignal): Promise<Json>;
  /** A call with an answer of its own that may be repeated without harm. */
  call(path: string, body: Json, signal?: AbortSignal): Promise<Json>;
  /** Starts a call that has a future; gives the answer that names it. */
  send(path: string, body: Json, options: SendOptions): Promise<Json>;
  /** Waits for the result of a call of `path`. */
  result(path: string, requestId: string, signal?: AbortSignal): Promise<Json>;
  /** `send`, then `result`. */
  run(path: string, body: Json, options: SendOptions): Promise<Json>;
  /** The session, created at first use and kept alive by heartbeats; a forgotten one is renewed. */
  session(signal?: AbortSignal): Promise<string>;
  /** After the server has said that it does not know the session. */
  forgetSession(): void;
  /** The bytes behind a path, or behind what it redirects to. */
  download(path: string, signal?: AbortSignal): Promise<Uint8Array>;
  /** `DELETE`; what is not there is no error. */
  remove(path: string): Promise<void>;
  close(): Promise<void>;
}

export interface SendOptions {
  /** The server knows a call by its sequence id: one whose answer was lost is sent again. */
  readonly isRepeatable: boolean;
  readonly signal?: AbortSignal | undefined;
}

const closed = (): OutriggerError =>
  new OutriggerError("backend-closed", "the connection to the Tinker server was closed", {
    origin: "backend",
    retryable: true,
  });

export function openTinkerClient(options: TinkerClientOptions): TinkerClient {
  const base = `${options.url.replace(/\/+$/, "").replace(/\/api\/v1$/, "")}/api/v1`;
  const { patienceMs = 60_000, retryDelayMs = 50, pollMs = 45_000 } = options;
  const agent = new Agent({ connectTimeout: 10_000 });
  const life = new AbortController();
  const headers = {
    "content-type": "application/json",
    ...(options.apiKey === undefined ? {} : { "x-api-key": options.apiKey }),
  };

  const exchange = async (
    method: "GET" | "POST" | "DELETE",
    path: string,
    body: Json | undefined,
    signal: AbortSignal | undefined,
    timeoutMs: number,
  ): Promise<HttpOutcome> => {
    const abort = linkedAbort(life.signal, signal);
    try {
      const response = await request(`${base}/${path}`, {
        method,
        headers,
        dispatcher: agent,
        signal: abort.signal,
        headersTimeout: timeoutMs,
        bodyTimeout: 120_000,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const isBinary = String(response.headers["content-type"]).startsWith(protobufType);
      const answer = isBinary
        ? new Uint8Array(await response.body.arrayBuffer())
        : parseJson(await response.body.text());
      return { kind: "answer", status: response.statusCode, body: answer };
    } catch (error) {
      if (signal?.aborted === true) throw signal.reason;
      if (life.signal.aborted) throw closed();
      const { code, message } = error as { code?: string; message: string };
      const isUnsent = code === "ECONNREFUSED" || code === "ENOTFOUND" || code === "EAI_AGAIN";
      return {
        kind: isUnsent || code === "UND_ERR_CONNECT_TIMEOUT" ? "not-sent" : "broken",
        message: `${code ?? "failed"} ${message}`.trim(),
      };
    } finally {
      abort.release();
    }
  };

  const pause = async (tryIndex: number, signal: AbortSignal | undefined): Promise<void> => {
    const abort = linkedAbort(life.signal, signal);
    await sleep(retryDelayMs * Math.min(40, 2 ** tryIndex), abort.signal);
    abort.release();
    signal?.throwIfAborted();
    if (life.signal.aborted) throw closed();
  };

  /** Tries for as long as the answer is one of `kinds`. */
  const persist = async (
    attempt: () => Promise<HttpOutcome>,
    kinds: readonly SendDecision["kind"][],
    what: string,
    signal: AbortSignal | undefined,
    patience = patienceMs,
  ): Promise<Json> => {
    const startedAt = performance.now();
    for (let tryIndex = 0; ; tryIndex += 1) {
      const decision = decideSend(await attempt());
      if (decision.kind === "accepted") return decision.body;
      if (decision.kind === "refused") throw refused(what, decision.status, decision.message);
      const isOver = performance.now() - startedAt > patience;
      if (isOver || !kinds.includes(decision.kind)) {
        throw decision.kind === "later"
          ? unreachable(base, what, decision.message)
          : outcomeUnknown(what, decision.message);
      }
      options.log.debug({ what, answer: decision.message }, "asked the Tinker server again");
      await pause(tryIndex, signal);
    }
  };

  const call: TinkerClient["call"] = (path, body, signal) =>
    persist(
      () => exchange("POST", path, body, signal, 60_000),
      ["later", "unknown"],
      path,
      signal,
    ).catch((error: unknown) => {
      // Nothing was at stake: a repeatable call that got no answer is only out of reach.
      if (isReason(error, "tinker-outcome-unknown")) throw unreachable(base, path, String(error));
      throw error;
    });

  const send: TinkerClient["send"] = (path, body, { isRepeatable, signal }) =>
    persist(
      () => exchange("POST", path, body, signal, 120_000),
      isRepeatable ? ["later", "unknown"] : ["later"],
      path,
      signal,
    );

  const result = async (path: string, requestId: string, signal?: AbortSignal): Promise<Json> => {
    let troubleSince: number | undefined;
    for (let tryIndex = 0; ; tryIndex += 1) {
      const body = { request_id: requestId };
      const outcome = await exchange("POST", "retrieve_future", body, signal, pollMs);
      const decision = decideFuture(outcome);
      if (decision.kind === "done") {
        const { result: done } = decision;
        return done instanceof Uint8Array ? decodeResult(path, done) : done;
      }
      if (decision.kind === "lost") throw outcomeUnknown(`future ${requestId}`, decision.message);
      if (decision.kind === "failed") throw failed(decision.message, decision.isUsers);
      // A poll that ran into its own time limit is the long wait it was meant to be.
      const isLongPoll = outcome.kind === "broken" && outcome.message.includes("HEADERS_TIMEOUT");
      if (decision.kind === "wait" || isLongPoll) {
        troubleSince = undefined;
        if (tryIndex > 1) await pause(0, signal);
        continue;
      }
      troubleSince ??= performance.now();
      if (performance.now() - troubleSince > patienceMs) {
        throw outcomeUnknown(`future ${requestId}`, decision.message);
      }
      await pause(Math.min(tryIndex, 5), signal);
    }
  };

  const run: TinkerClient["run"] = async (path, body, sendOptions) => {
    for (let tryIndex = 0; ; tryIndex += 1) {
      const answer = await send(path, body, sendOptions);
      const requestId = requestIdOf(answer, path);
      try {
        return await result(path, requestId, sendOptions.signal);
      } catch (error) {
        const isLost = isReason(error, "tinker-outcome-unknown");
        if (!isLost || !sendOptions.isRepeatable || tryIndex >= 2) throw error;
      }
    }
  };

  /** The archive's own place may be another host's, which must not see the key. */
  const download = async (
    place: URL,
    signal: AbortSignal | undefined,
    redirects = 3,
  ): Promise<Uint8Array> => {
    const abort = linkedAbort(life.signal, signal);
    const isOwn = place.origin === new URL(base).origin;
    try {
      const {
        statusCode,
        headers: answer,
        body,
      } = await request(place, {
        dispatcher: agent,
        signal: abort.signal,
        headersTimeout: 120_000,
        ...(isOwn ? { headers } : {}),
      });
      const { location } = answer;
      if (statusCode >= 300 && statusCode < 400 && typeof location === "string" && redirects > 0) {
        await body.dump();
        return await download(new URL(location, place), signal, redirects - 1);
      }
      if (statusCode === 200) return new Uint8Array(await body.arrayBuffer());
      const message = `${statusCode}: ${(await body.text()).slice(0, 300)}`;
      if (statusCode >= 500) throw unreachable(base, place.pathname, message);
      throw refused(place.pathname, statusCode, message);
    } catch (error) {
      if (signal?.aborted === true) throw signal.reason;
      if (life.signal.aborted) throw closed();
      if (error instanceof OutriggerError) throw error;
      throw unreachable(base, place.pathname, (error as Error).message);
    } finally {
      abort.release();
    }
  };

  let session: Promise<string> | undefined;
  let heartbeat: NodeJS.Timeout | undefined;
  const openSession = async (signal: AbortSignal | undefined): Promise<string> => {
    const body = { tags: ["outrigger"], user_metadata: {}, sdk_version: "0.19.0" };
    const answer = await call("create_session", { ...body, type: "create_session" }, signal);
    const id = String(answer["session_id"]);
    clearInterval(heartbeat);
    heartbeat = setInterval(() => {
      void exchange("POST", "session_heartbeat", { session_id: id }, undefined, 10_000)
        .then((outcome) => {
          if (outcome.kind === "answer" && outcome.status === 404) session = undefined;
        })
        .catch(() => undefined);
    }, options.heartbeatMs ?? 10_000);
    heartbeat.unref();
    return id;
  };

  return {
    get: (path, signal) =>
      persist(
        () => exchange("GET", path, undefined, signal, 30_000),
        ["later", "unknown"],
        path,
        signal,
        Math.min(patienceMs, firstPatienceMs),
      ),
    call,
    send,
    result,
    run,
    session: (signal) => {
      session ??= openSession(signal).catch((error: unknown) => {
        session = undefined;
        throw error;
      });
      return session;
    },
    forgetSession: () => {
      session = undefined;
    },
    download: (path, signal) => download(new URL(`${base}/${path}`), signal),
    remove: async (path) => {
      await exchange("DELETE", path, undefined, undefined, 10_000);
    },
    close: async () => {
      clearInterval(heartbeat);
      life.abort(closed());
      await agent.destroy();
    },
  };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** Some servers count, others have texts. */
export function requestIdOf(answer: Json, path: string): string {
  const id = answer["request_id"];
  if (typeof id === "string" || typeof id === "number") return String(id);
  throw failed(`${path}: no request_id in the answer`, false);
}

export function isReason(error: unknown, ...reasons: readonly string[]): error is OutriggerError {
  return error instanceof OutriggerError && reasons.includes(error.reason);
}

const unreachable = (base: string, what: string, message: string): OutriggerError =>
  new OutriggerError("tinker-unreachable", `${what} at ${base} gets no answer: ${message}`, {
    origin: "backend",
    hint: "Is the Tinker server running, and is backend.url right?",
    retryable: true,
  });

const outcomeUnknown = (what: string, message: string): OutriggerError =>
  new OutriggerError("tinker-outcome-unknown", `the result of ${what} was lost: ${message}`, {
    origin: "backend",
    retryable: true,
  });

function refused(what: string, status: number, message: string): OutriggerError {
  const reason =
    status === 404 ? "tinker-not-found" : status === 409 ? "tinker-conflict" : "tinker-refused";
  return new OutriggerError(reason, `the Tinker server refuses ${what}: ${message}`, {
    origin: "backend",
    hint: status === 401 || status === 403 ? "Check the API key." : "Its log says more.",
  });
}

const failed = (message: string, isUsers: boolean): OutriggerError =>
  new OutriggerError("tinker-failed", `a call of the Tinker server failed: ${message}`, {
    origin: "backend",
    hint: isUsers ? "The request does not suit the server." : "The server's log says more.",
  });
