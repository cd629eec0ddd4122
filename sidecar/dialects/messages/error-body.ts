import type { DialectError, EncodedReply } from "../dialect.ts";
import { encodeErrorReply, encodeReply } from "../encode-reply.ts";
import { type EngineError, readContextOverflow, readErrorBody } from "../read-engine-error.ts";

const types: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  503: "overloaded_error",
  529: "overloaded_error",
};

export function messagesErrorType(status: number): string {
  return types[status] ?? (status >= 500 ? "api_error" : "invalid_request_error");
}

/**
 * Anthropic's error object. `code` and `param` are OpenAI's: the same body then satisfies clients
 * of both.
 */
export function messagesErrorBody(status: number, message: string, code: string | null): unknown {
  return {
    type: "error",
    error: { type: messagesErrorType(status), message, param: null, code },
  };
}

export function encodeMessagesError(error: DialectError): EncodedReply {
  return encodeErrorReply(error, messagesErrorBody(error.status, error.message, error.reason));
}

/** An engine's error answer in this dialect; the status and the other headers stay. */
export function translateMessagesError(upstream: EncodedReply): EncodedReply {
  const error = readErrorBody(upstream.body);
  const value = messagesErrorBody(upstream.status, messagesErrorMessage(error), error.code ?? null);
  const reply = encodeReply(upstream.status, value);
  return { ...reply, headers: { ...upstream.headers, ...reply.headers } };
}

/** Claude Code compacts its history when it reads "prompt is too long: n tokens > m maximum". */
export function messagesErrorMessage(error: EngineError): string {
  const overflow = readContextOverflow(error);
  if (overflow === undefined) return error.message;
  const { limitTokens, requestedTokens } = overflow;
  return limitTokens === undefined || requestedTokens === undefined
    ? `prompt is too long: ${error.message}`
    : `prompt is too long: ${requestedTokens} tokens > ${limitTokens} maximum`;
}
