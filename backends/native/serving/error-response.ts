import { OutriggerError } from "../../../core/outrigger-error.ts";

export interface ErrorResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: {
    readonly error: {
      readonly message: string;
      readonly type: string;
      readonly param: string | null;
      readonly code: number | string;
    };
  };
}

const statusOf: Readonly<Record<string, readonly [status: number, type: string]>> = {
  "bad-request": [400, "BadRequestError"],
  "context-overflow": [400, "BadRequestError"],
  "chat-template-refused": [400, "BadRequestError"],
  unauthenticated: [401, "AuthenticationError"],
  "body-too-large": [413, "RequestEntityTooLarge"],
  "not-found": [404, "NotFoundError"],
  "queue-full": [503, "ServiceUnavailableError"],
  "engine-closed": [503, "ServiceUnavailableError"],
};

/** The error as vLLM writes it: `{"error": {message, type, param, code}}` with the status as code. */
export function errorResponse(error: unknown): ErrorResponse {
  const known = error instanceof OutriggerError ? statusOf[error.reason] : undefined;
  const [status, type] = known ?? [500, "InternalServerError"];
  const message = error instanceof Error ? error.message : String(error);
  return {
    status,
    headers: status === 503 ? { "retry-after": "1" } : {},
    body: { error: { message, type, param: null, code: status } },
  };
}

export const badRequest = (message: string): OutriggerError =>
  new OutriggerError("bad-request", message, { origin: "harness" });

/** The words that clients look for to start their compaction, as vLLM has them. */
export function contextOverflow(
  maxLength: number,
  promptTokens: number,
  maxTokens: number | undefined,
): OutriggerError {
  const message =
    maxTokens === undefined
      ? `This model's maximum context length is ${maxLength} tokens. However, your request has ${promptTokens} input tokens. Please reduce the length of the input messages.`
      : `This model's maximum context length is ${maxLength} tokens. However, you requested ${promptTokens + maxTokens} tokens (${promptTokens} in the messages, ${maxTokens} in the completion). Please reduce the length of the messages or completion.`;
  return new OutriggerError("context-overflow", message, { origin: "harness" });
}

/** The same for a text that is too long whatever its tokens are. */
export function textOverflow(maxLength: number, leastTokens: number): OutriggerError {
  const message = `This model's maximum context length is ${maxLength} tokens. However, your request has at least ${leastTokens} input tokens. Please reduce the length of the input messages.`;
  return new OutriggerError("context-overflow", message, { origin: "harness" });
}
