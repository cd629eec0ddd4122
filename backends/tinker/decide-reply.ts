/** What became of one HTTP request: an answer, or a failure before or after it could be read. */
export type HttpOutcome =
  | { readonly kind: "answer"; readonly status: number; readonly body: unknown }
  /** The connection was refused: the server has not seen the request. */
  | { readonly kind: "not-sent"; readonly message: string }
  /** The connection broke or timed out: whether the server has seen the request is not known. */
  | { readonly kind: "broken"; readonly message: string };

export type SendDecision =
  | { readonly kind: "accepted"; readonly body: Readonly<Record<string, unknown>> }
  /** Not accepted for certain, and may be at another time. */
  | { readonly kind: "later"; readonly message: string }
  /** It may have been accepted. */
  | { readonly kind: "unknown"; readonly message: string }
  | { readonly kind: "refused"; readonly status: number; readonly message: string };

/** 503 and 429 are said instead of doing the work; other 5xx may come from a proxy in between. */
const notAccepted = new Set([425, 429, 503]);

/** What a call's answer means for whether the server has taken it. */
export function decideSend(outcome: HttpOutcome): SendDecision {
  if (outcome.kind === "not-sent") return { kind: "later", message: outcome.message };
  if (outcome.kind === "broken") return { kind: "unknown", message: outcome.message };
  const { status, body } = outcome;
  const message = `${status}: ${messageOf(body)}`;
  if (status >= 200 && status < 300) {
    if (typeof body === "object" && body !== null) {
      return { kind: "accepted", body: body as Readonly<Record<string, unknown>> };
    }
    return { kind: "unknown", message: `an answer that is no JSON object: ${message}` };
  }
  if (notAccepted.has(status)) return { kind: "later", message };
  if (status === 408 || status >= 500) return { kind: "unknown", message };
  return { kind: "refused", status, message };
}

export type FutureDecision =
  /** Bytes are protobuf. */
  | { readonly kind: "done"; readonly result: Readonly<Record<string, unknown>> | Uint8Array }
  | { readonly kind: "wait" }
  /** Like `wait`, but the server is in trouble: wait longer, and not for ever. */
  | { readonly kind: "again"; readonly message: string }
  /** The call has run, and its result cannot be had any more. */
  | { readonly kind: "lost"; readonly message: string }
  | { readonly kind: "failed"; readonly message: string; readonly isUsers: boolean };

/**
 * What an answer of `retrieve_future` means. The servers differ:
 * - SkyRL holds the request and answers 408 when the result is not there yet, 404 for an unknown
 *   future, 400 with a reason or 500 without one for a failed call;
 * - verl_tinker answers 200 `{type: "try_again"}`, once even after the result is there, and
 *   200 `{error, category}` for a failure; a result can be read once, then it answers
 *   `{error, seen_before: true}`, and `seen_before: false` for a future that it does not know;
 * - 410 is a future that has expired.
 */
export function decideFuture(outcome: HttpOutcome): FutureDecision {
  if (outcome.kind !== "answer") return { kind: "again", message: outcome.message };
  const { status } = outcome;
  if (outcome.body instanceof Uint8Array && status < 300) {
    return { kind: "done", result: outcome.body };
  }
  const body = (outcome.body ?? {}) as Readonly<Record<string, unknown>>;
  const message = `${status}: ${messageOf(outcome.body)}`;
  if (status === 408) return { kind: "wait" };
  if (status === 404 || status === 410) return { kind: "lost", message };
  // SkyRL says 500 only for a call that failed without a reason.
  if (status === 500 && messageOf(body) === "Unknown error") {
    return { kind: "failed", message, isUsers: false };
  }
  if (status === 429 || status >= 500) return { kind: "again", message };
  if (status >= 300) return { kind: "failed", message, isUsers: true };
  if (typeof outcome.body !== "object" || outcome.body === null) {
    return { kind: "again", message: `an answer that is no JSON object: ${message}` };
  }
  if (body["type"] === "try_again") return { kind: "wait" };
  if (typeof body["error"] !== "string") return { kind: "done", result: body };
  if (typeof body["seen_before"] === "boolean") return { kind: "lost", message: body["error"] };
  return { kind: "failed", message: body["error"], isUsers: body["category"] === "user" };
}

/** FastAPI's `detail`, else what else names itself an error, shortened. */
function messageOf(body: unknown): string {
  if (typeof body === "object" && body !== null) {
    const { detail, error } = body as { detail?: unknown; error?: unknown };
    const text = detail ?? error ?? body;
    return (typeof text === "string" ? text : JSON.stringify(text)).slice(0, 1_000);
  }
  return String(body).slice(0, 300);
}
