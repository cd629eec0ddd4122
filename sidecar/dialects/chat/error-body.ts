import type { DialectError, EncodedReply } from "../dialect.ts";
import { encodeErrorReply } from "../encode-reply.ts";

const types: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "invalid_request_error",
  429: "rate_limit_error",
};

/** OpenAI's error object: `{error: {message, type, param, code}}`. */
export function chatErrorBody(error: DialectError): unknown {
  const type = types[error.status] ?? (error.status >= 500 ? "api_error" : "invalid_request_error");
  return { error: { message: error.message, type, param: null, code: error.reason } };
}

export function encodeChatError(error: DialectError): EncodedReply {
  return encodeErrorReply(error, chatErrorBody(error));
}
