import { describe, expect, it } from "vitest";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../../sidecar/dialects/completions/completions-dialect.ts";
import {
  encodeCountTokens,
  planCountTokens,
} from "../../sidecar/dialects/messages/count-tokens.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { engineStream, plan, relay, testSettings } from "./run-dialect.ts";

/** JSON that the parser takes and the writer does not. */
const deep = `${"[".repeat(50_000)}${"]".repeat(50_000)}`;
const schema = `{"type":"object","x":${deep}}`;

describe("JSON nested 50,000 deep ends no process", () => {
  it.each([
    [messagesDialect, `{"messages":[],"tools":[{"name":"f","input_schema":${schema}}]}`],
    [
      messagesDialect,
      `{"messages":[],"output_config":{"format":{"type":"json_schema","schema":${schema}}}}`,
    ],
    [
      responsesDialect,
      `{"input":"","tools":[{"type":"function","name":"f","parameters":${schema}}]}`,
    ],
    [responsesDialect, `{"input":"","text":{"format":{"type":"json_schema","schema":${schema}}}}`],
  ])("$name: a request that cannot be translated is refused", (dialect, body) => {
    const planned = dialect.planCall(Buffer.from(body), testSettings());
    expect(planned).toMatchObject({ kind: "refused", reply: { status: 400 } });
    if (planned.kind === "refused") expect(planned.reply.body.toString()).toContain("too deeply");
  });

  it.each([
    [chatDialect, `{"messages":[],"x":${deep}}`],
    [completionsDialect, `{"prompt":"","x":${deep}}`],
    [messagesDialect, `{"messages":[],"x":${deep}}`],
    [responsesDialect, `{"input":"","x":${deep}}`],
  ])("$name: where it need not be written anew, it goes on", (dialect, body) => {
    expect(plan(dialect, body).captured).toBe(true);
  });

  it("count_tokens", () => {
    const body = `{"messages":[],"tools":[{"name":"f","input_schema":${schema}}]}`;
    expect(planCountTokens(Buffer.from(body), testSettings())).toMatchObject({ status: 400 });
    const reply = { status: 200, headers: {}, body: Buffer.from(`{"count":3,"x":${deep}}`) };
    expect(encodeCountTokens(reply).body.toString()).toBe('{"input_tokens":3}');
  });

  const call = `{"id":"a","function":{"name":"f","arguments":{"x":${deep}}}}`;
  const whole = Buffer.from(
    `{"choices":[{"index":0,"finish_reason":"stop","x":${deep},"message":{"content":"a","tool_calls":[${call}]}}]}`,
  );
  const chunk = `{"choices":[{"index":0,"finish_reason":"stop","delta":{"content":"a","tool_calls":[${call}]}}]}`;

  it.each([chatDialect, completionsDialect, responsesDialect, messagesDialect])(
    "$name: an engine's answer, whole, streamed, and made into a stream",
    (dialect) => {
      const reply = plan(dialect, {}).encodeResponse({ status: 200, headers: {}, body: whole });
      expect(reply.body.length).toBeGreaterThan(0);
      const made = plan(dialect, { stream: true }).openStream();
      made.pushWhole(whole);
      expect(made.outcome).not.toBe("open");
      const stream = plan(dialect, { stream: true }).openStream();
      relay(stream, engineStream([chunk, "[DONE]"]));
      expect(stream.outcome).toBe("completed");
    },
  );
});
