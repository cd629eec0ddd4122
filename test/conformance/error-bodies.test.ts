import { describe, expect, it } from "vitest";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../../sidecar/dialects/completions/completions-dialect.ts";
import type { Dialect, EncodedReply } from "../../sidecar/dialects/dialect.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { plan, readEvents } from "./run-dialect.ts";

const all: Dialect[] = [chatDialect, completionsDialect, responsesDialect, messagesDialect];

function json(reply: EncodedReply): unknown {
  return JSON.parse(reply.body.toString());
}

function engineError(
  dialect: Dialect,
  status: number,
  body: unknown,
  stream = false,
): EncodedReply {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  const headers = { "retry-after": "7", "x-request-id": "r", "content-type": "text/plain" };
  return plan(dialect, { stream }).encodeEngineError({ status, headers, body: Buffer.from(text) });
}

const overflow = {
  error: {
    message:
      "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the messages, 500 in the completion).",
    type: "BadRequestError",
    code: 400,
  },
};

describe("failures of the sidecar's own", () => {
  it.each(all.map((dialect) => [dialect.name, dialect] as const))(
    "%s: a 429 or 503 always says when to come back",
    (_name, dialect) => {
      const error = { status: 429, reason: "gate-hold-limit", message: "held too long" };
      expect(dialect.encodeError(error).headers["retry-after"]).toBe("1");
      expect(dialect.encodeError({ ...error, retryAfterSeconds: 2.2 }).headers["retry-after"]).toBe(
        "3",
      );
      expect(dialect.encodeError({ ...error, status: 503 }).headers["retry-after"]).toBe("1");
      expect(dialect.encodeError({ ...error, status: 401 }).headers).not.toHaveProperty(
        "retry-after",
      );
    },
  );

  it("in each dialect's shape", () => {
    const error = { status: 401, reason: "unknown-identity", message: "who?" };
    const openai = {
      error: {
        message: "who?",
        type: "authentication_error",
        param: null,
        code: "unknown-identity",
      },
    };
    expect(json(chatDialect.encodeError(error))).toEqual(openai);
    expect(json(completionsDialect.encodeError(error))).toEqual(openai);
    expect(json(responsesDialect.encodeError(error))).toMatchObject({
      error: { message: "who?", code: "unknown-identity" },
    });
    expect(json(messagesDialect.encodeError(error))).toMatchObject({
      type: "error",
      error: { type: "authentication_error", message: "who?" },
    });
  });

  it.each([
    [400, "invalid_request_error"],
    [401, "authentication_error"],
    [403, "permission_error"],
    [404, "not_found_error"],
    [413, "request_too_large"],
    [429, "rate_limit_error"],
    [500, "api_error"],
    [502, "api_error"],
    [503, "overloaded_error"],
    [529, "overloaded_error"],
  ])("Anthropic's type of %i is %s", (status, type) => {
    expect(json(messagesDialect.encodeError({ status, reason: "r", message: "m" }))).toMatchObject({
      error: { type },
    });
  });
});

describe("errors of the engine", () => {
  it("Messages: status, Retry-After and message stay, the shape is Anthropic's", () => {
    const reply = engineError(messagesDialect, 429, { error: { message: "slow down" } });
    expect(reply).toMatchObject({
      status: 429,
      headers: { "retry-after": "7", "x-request-id": "r", "content-type": "application/json" },
    });
    expect(json(reply)).toMatchObject({
      type: "error",
      error: { type: "rate_limit_error", message: "slow down" },
    });
  });

  it.each<[unknown, string]>([
    [{ object: "error", message: "old", code: 400 }, "old"],
    [{ error: "text" }, "text"],
    [{ detail: "fastapi" }, "fastapi"],
    ["<html>bad gateway</html>", "<html>bad gateway</html>"],
    ["", "the engine gave no reason"],
  ])("message of %j", (body, message) => {
    expect(json(engineError(messagesDialect, 502, body))).toMatchObject({ error: { message } });
    expect(json(engineError(responsesDialect, 502, body))).toMatchObject({ error: { message } });
  });

  it("a context overflow in the words that Claude Code compacts on", () => {
    expect(json(engineError(messagesDialect, 400, overflow))).toMatchObject({
      error: {
        type: "invalid_request_error",
        message: "prompt is too long: 5000 tokens > 4096 maximum",
      },
    });
    expect(
      json(engineError(messagesDialect, 400, { message: "input exceeds the context window" })),
    ).toMatchObject({ error: { message: "prompt is too long: input exceeds the context window" } });
  });

  it("a context overflow in the code that Codex compacts on, as a stream where it streams", () => {
    expect(json(engineError(responsesDialect, 400, overflow))).toMatchObject({
      error: { code: "context_length_exceeded" },
    });
    const reply = engineError(responsesDialect, 400, overflow, true);
    expect(reply).toMatchObject({ status: 200, headers: { "content-type": "text/event-stream" } });
    const events = readEvents(reply.body.toString());
    expect(events.map(([name]) => name)).toEqual([
      "response.created",
      "response.in_progress",
      "response.failed",
    ]);
    expect(events.at(-1)?.[1]).toMatchObject({
      response: { error: { code: "context_length_exceeded" } },
    });
  });

  it("a rate limit in the code that Codex waits on", () => {
    expect(
      json(engineError(responsesDialect, 429, { error: { message: "m" } }, true)),
    ).toMatchObject({ error: { code: "rate_limit_exceeded" } });
  });
});
