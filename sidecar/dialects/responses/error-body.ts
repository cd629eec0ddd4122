import type { DialectError, EncodedReply } from "../dialect.ts";
import { encodeErrorReply, encodeReply } from "../encode-reply.ts";
import { type EngineError, readContextOverflow, readErrorBody } from "../read-engine-error.ts";

/** The code that Codex acts on, and a message that it can read. */
export interface ResponsesError {
  readonly code: string;
  readonly message: string;
}

function errorObject(status: number, { code, message }: ResponsesError): unknown {
  const type =
    status === 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
  return { error: { message, type, param: null, code } };
}

/** The sidecar's own failure as `{error: {message, type, param, code}}`. */
export function encodeResponsesError(error: DialectError): EncodedReply {
  return encodeErrorReply(error, errorObject(error.status, describeOwnError(error)));
}

/** "try again in 1.5s" is what Codex reads its delay from, inside a stream. */
export function describeOwnError(error: DialectError): ResponsesError {
  if (error.status !== 429) return { code: error.reason, message: error.message };
  const seconds = error.retryAfterSeconds ?? 1;
  return {
    code: "rate_limit_exceeded",
    message: `${error.message}; please try again in ${seconds}s`,
  };
}

export function describeEngineError(error: EngineError, status: number): ResponsesError {
  if (readContextOverflow(error) !== undefined) {
    return { code: "context_length_exceeded", message: error.message };
  }
  const fallback = status === 429 ? "rate_limit_exceeded" : (error.code ?? "server_error");
  return {
    code: error.code === "insufficient_quota" ? error.code : fallback,
    message: error.message,
  };
}

/** An engine's error answer in this dialect; the status and the other headers stay. */
export function translateResponsesError(upstream: EncodedReply): EncodedReply {
  const error = describeEngineError(readErrorBody(upstream.body), upstream.status);
  const reply = encodeReply(upstream.status, errorObject(upstream.status, error));
  return { ...reply, headers: { ...upstream.headers, ...reply.headers } };
}
