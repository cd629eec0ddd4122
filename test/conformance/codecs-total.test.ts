import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createCallCapture } from "../../sidecar/dialects/call-capture.ts";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../../sidecar/dialects/completions/completions-dialect.ts";
import type { Dialect, EngineProfile, PlannedCall } from "../../sidecar/dialects/dialect.ts";
import {
  encodeCountTokens,
  planCountTokens,
} from "../../sidecar/dialects/messages/count-tokens.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { createSseDecoder } from "../../sidecar/sse/sse-decoder.ts";
import { testSettings } from "./run-dialect.ts";

const all = [chatDialect, completionsDialect, responsesDialect, messagesDialect].map(
  (dialect) => [dialect.name, dialect] as const,
);
const engines: readonly EngineProfile[] = [
  { kind: "vllm", streamsIds: true },
  { kind: "sglang", streamsIds: false },
];

/** Values that the formats know, so that arbitrary JSON reaches beyond the first check. */
const words = fc.constantFrom(
  "message",
  "user",
  "assistant",
  "system",
  "developer",
  "tool",
  "function_call",
  "function_call_output",
  "reasoning",
  "custom_tool_call",
  "namespace",
  "custom",
  "function",
  "text",
  "tool_use",
  "tool_result",
  "image",
  "thinking",
  "input_text",
  "auto",
  "stop",
  "length",
  "tool_calls",
  "error",
  "__proto__",
  "",
);
const keys = fc.constantFrom(
  "model",
  "messages",
  "input",
  "instructions",
  "prompt",
  "stream",
  "stream_options",
  "logprobs",
  "top_logprobs",
  "return_token_ids",
  "role",
  "content",
  "type",
  "text",
  "tools",
  "tool_choice",
  "name",
  "parameters",
  "input_schema",
  "system",
  "thinking",
  "output_config",
  "stop_sequences",
  "call_id",
  "arguments",
  "output",
  "choices",
  "index",
  "delta",
  "message",
  "function",
  "id",
  "tool_calls",
  "finish_reason",
  "stop_reason",
  "usage",
  "prompt_tokens",
  "completion_tokens",
  "prompt_token_ids",
  "token_ids",
  "meta_info",
  "output_token_logprobs",
  "policy_versions",
  "reasoning_content",
  "error",
  "code",
  "object",
  "constructor",
  "__proto__",
);
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    words,
    fc.constantFrom(null, true, false, 0, 1, -1, 2.5, 2 ** 53),
    fc.string({ maxLength: 5 }),
    fc.array(tie("value"), { maxLength: 4 }),
    fc.array(fc.tuple(keys, tie("value")), { maxLength: 6 }).map(toObject),
  ),
}));
const object = fc.array(fc.tuple(keys, value), { maxLength: 8 }).map(toObject);
const body = fc.oneof(
  object.map((each) => JSON.stringify(each)),
  value.map((each) => JSON.stringify(each)),
  // Cut off, with bytes of no text, or NaN: what no JSON parser takes.
  fc.tuple(object, fc.nat(200)).map(([each, at]) => JSON.stringify(each).slice(0, at)),
  object.map((each) => JSON.stringify(each).replaceAll("2.5", "NaN")),
  fc.string({ unit: "binary", maxLength: 40 }),
);
const bytes = fc.oneof(
  body.map((text) => Buffer.from(text)),
  fc.uint8Array({ maxLength: 60 }).map((each) => Buffer.from(each)),
);

/** `__proto__` as a member of its own, as `JSON.parse` has it. */
function toObject(members: readonly (readonly [string, unknown])[]): object {
  const made = {};
  for (const [key, member] of members) {
    Object.defineProperty(made, key, { value: member, enumerable: true, configurable: true });
  }
  return made;
}

function isRecord(text: string): boolean {
  try {
    const parsed: unknown = JSON.parse(text);
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed);
  } catch {
    return false;
  }
}

function planned(dialect: Dialect, request: object, engine: EngineProfile): PlannedCall {
  const plan = dialect.planCall(Buffer.from(JSON.stringify(request)), testSettings({ engine }));
  if (plan.kind === "refused") throw new Error("refused");
  return plan;
}

describe.each(all)("%s is total", (name, dialect) => {
  const isTranslated = name === "messages" || name === "responses";

  it("over any request: an object is sent on, with ids asked for; never a 400", () => {
    fc.assert(
      fc.property(bytes, fc.constantFrom(...engines), (request, engine) => {
        const plan = dialect.planCall(request, testSettings({ engine }));
        const text = request.toString("utf8");
        if (plan.kind === "refused") {
          expect(isTranslated && !isRecord(text)).toBe(true);
          expect(plan.reply.status).toBe(400);
          expect(isRecord(plan.reply.body.toString())).toBe(true);
        } else if (isRecord(text)) {
          const upstream = JSON.parse(plan.upstreamBody.toString()) as Record<string, unknown>;
          expect(upstream["return_token_ids"]).toBe(true);
          expect(plan.captured).toBe(true);
        } else if (!plan.captured) expect(plan.upstreamBody.equals(request)).toBe(true);
      }),
      { numRuns: 400 },
    );
  });

  it("over any whole answer and any error answer", () => {
    fc.assert(
      fc.property(
        bytes,
        fc.constantFrom(200, 400, 429, 500, 503, 529),
        fc.boolean(),
        (answer, status, stream) => {
          const plan = planned(dialect, { stream }, engines[0] as EngineProfile);
          const upstream = { status, headers: {}, body: answer };
          const whole = plan.encodeResponse(upstream);
          const error = plan.encodeEngineError(upstream);
          if (isTranslated) {
            expect(isRecord(whole.body.toString())).toBe(true);
            expect(error.status === status || error.status === 200).toBe(true);
          } else expect(error).toBe(upstream);
        },
      ),
      { numRuns: 300 },
    );
  });

  it("over any events of a stream, and each stream ends in one way only", () => {
    const event = fc.oneof(
      body.map((text) => `data: ${text.replaceAll(/[\r\n]/g, " ")}\n\n`),
      fc.constantFrom("data: [DONE]\n\n", ": c\n\n", "event: x\n\n", "\n\n"),
    );
    fc.assert(
      fc.property(
        fc.array(event, { maxLength: 8 }),
        fc.constantFrom("end", "reset", "error"),
        (events, ending) => {
          const stream = planned(
            dialect,
            { stream: true },
            engines[0] as EngineProfile,
          ).openStream();
          const capture = createCallCapture();
          const error = { status: 503, reason: "r", message: "m" };
          for (const block of createSseDecoder().push(Buffer.from(events.join("")))) {
            stream.push(block);
            stream.keepAlive();
            capture.addBlock(block);
          }
          if (ending === "end") stream.end();
          else if (ending === "reset") stream.fail({ kind: "reset", message: "m" });
          else stream.fail({ kind: "error", error });
          expect(stream.outcome).not.toBe("open");
          expect(stream.fail({ kind: "error", error })).toHaveLength(0);
          expect(stream.end()).toHaveLength(0);
          expect(stream.keepAlive()).toHaveLength(0);
          for (const choice of capture.result().choices) {
            expect(choice.complete).toBe(choice.incompleteReason === undefined);
          }
        },
      ),
      { numRuns: 300 },
    );
  });

  it("over any whole answer that becomes a stream", () => {
    fc.assert(
      fc.property(bytes, (answer) => {
        const stream = planned(dialect, { stream: true }, engines[1] as EngineProfile).openStream();
        stream.pushWhole(answer);
        const capture = createCallCapture();
        capture.addBody(answer);
        capture.result();
        expect(stream.outcome).not.toBe("open");
        expect(stream.end()).toHaveLength(0);
      }),
      { numRuns: 300 },
    );
  });
});

it("count_tokens is total over any request and any answer", () => {
  fc.assert(
    fc.property(bytes, bytes, (request, answer) => {
      const plan = planCountTokens(request, testSettings({ capture: false }));
      if ("upstreamBody" in plan) expect(isRecord(plan.upstreamBody.toString())).toBe(true);
      else expect([plan.status, isRecord(request.toString())]).toEqual([400, false]);
      const reply = encodeCountTokens({ status: 200, headers: {}, body: answer });
      expect(isRecord(reply.body.toString())).toBe(true);
    }),
    { numRuns: 300 },
  );
});
