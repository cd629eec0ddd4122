import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { DialectStream } from "../../sidecar/dialects/dialect.ts";
import type { JsonRecord } from "../../sidecar/dialects/json-value.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { engineStream, plan, readEvents, relay, type StreamEnd } from "./run-dialect.ts";

const request = {
  model: "claude-x",
  max_tokens: 10,
  messages: [],
  stream: true,
  stop_sequences: ["END"],
};

function openStream(): DialectStream {
  return plan(messagesDialect, request).openStream();
}

/** Short form of the events, e.g. `start0 text`, `delta0 "Hi"`, `stop0`, `message_delta end_turn`. */
function summarize(text: string): string[] {
  return readEvents(text).map(([name, data]) => {
    expect(data["type"]).toBe(name);
    const index = ((data["index"] as number | undefined) ?? "").toString();
    const block = data["content_block"] as Record<string, string> | undefined;
    const delta = data["delta"] as Record<string, string> | undefined;
    switch (name ?? "") {
      case "content_block_start":
        return `start${index} ${[block?.["type"], block?.["id"], block?.["name"]].filter(Boolean).join(" ")}`;
      case "content_block_delta":
        return delta?.["type"] === "signature_delta"
          ? `delta${index} signature`
          : `delta${index} ${delta?.["text"] ?? delta?.["thinking"] ?? delta?.["partial_json"]}`;
      case "content_block_stop":
        return `stop${index}`;
      case "message_delta":
        return `message_delta ${delta?.["stop_reason"]}`;
      case "error":
        return `error ${(data["error"] as JsonRecord)["type"] as string}`;
      default:
        return String(name);
    }
  });
}

const c = (delta: object, more: object = {}) => ({ choices: [{ index: 0, delta, ...more }] });
const finish = (reason: string, more: object = {}) => c({}, { finish_reason: reason, ...more });
const usage = (prompt: number, completion: number, more: object = {}) => ({
  choices: [],
  usage: { prompt_tokens: prompt, completion_tokens: completion, ...more },
});
const tool = (
  index: number | undefined,
  id: string | undefined,
  name: string | undefined,
  args: string,
) =>
  c({
    tool_calls: [
      {
        ...(index === undefined ? {} : { index }),
        ...(id === undefined ? {} : { id }),
        function: { ...(name === undefined ? {} : { name }), arguments: args },
      },
    ],
  });

function run(lines: readonly (object | string)[], end: StreamEnd = "eof"): string[] {
  return summarize(relay(openStream(), engineStream(lines), end));
}

/** Only the blocks: without `message_start, ping` and the two closing events. */
function blocks(lines: readonly (object | string)[]): string[] {
  const events = run([...lines, usage(1, 1), "[DONE]"]);
  expect(events.slice(0, 2)).toEqual(["message_start", "ping"]);
  expect(events.at(-1)).toBe("message_stop");
  return events.slice(2, -2);
}

describe("chat chunks -> Anthropic events", () => {
  it("the worked example", () => {
    const events = run([
      c({ role: "assistant", content: "" }),
      c({ reasoning_content: "hm" }),
      c({ content: "Hi" }),
      tool(0, "a", "f", ""),
      tool(0, undefined, undefined, '{"x":1}'),
      tool(1, "b", "g", "{}"),
      finish("tool_calls"),
      usage(9, 4),
      "[DONE]",
    ]);
    expect(events).toEqual([
      "message_start",
      "ping",
      "start0 thinking",
      "delta0 hm",
      "delta0 signature",
      "stop0",
      "start1 text",
      "delta1 Hi",
      "stop1",
      "start2 tool_use a f",
      'delta2 {"x":1}',
      "stop2",
      "start3 tool_use b g",
      "delta3 {}",
      "stop3",
      "message_delta tool_use",
      "message_stop",
    ]);
  });

  it("A1: the first chunk starts the message once and its own delta follows", () => {
    const out = relay(openStream(), engineStream([c({ content: "Hi" }), finish("stop"), "[DONE]"]));
    const [, start] = readEvents(out)[0] ?? [];
    expect(start).toEqual({
      type: "message_start",
      message: {
        id: "msg_1",
        type: "message",
        role: "assistant",
        model: "claude-x",
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: {
          input_tokens: 0,
          output_tokens: 0,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 0,
        },
      },
    });
    expect(summarize(out)).toEqual([
      "message_start",
      "ping",
      "start0 text",
      "delta0 Hi",
      "stop0",
      "message_delta end_turn",
      "message_stop",
    ]);
  });

  it.each(["reasoning_content", "reasoning"])(
    "A2: %s becomes thinking, null and empty do not",
    (key) => {
      expect(
        blocks([
          c({ [key]: "" }),
          c({ [key]: null }),
          c({ [key]: "a" }),
          c({ [key]: "b" }),
          finish("stop"),
        ]),
      ).toEqual(["start0 thinking", "delta0 a", "delta0 b", "delta0 signature", "stop0"]);
    },
  );

  it("A3: leaving a thinking block signs it", () => {
    expect(
      blocks([c({ reasoning: "a" }), c({ content: "b" }), c({ reasoning: "c" }), finish("stop")]),
    ).toEqual([
      "start0 thinking",
      "delta0 a",
      "delta0 signature",
      "stop0",
      "start1 text",
      "delta1 b",
      "stop1",
      "start2 thinking",
      "delta2 c",
      "delta2 signature",
      "stop2",
    ]);
  });

  it("A4: empty and null content never open a block", () => {
    expect(blocks([c({ content: "" }), c({ content: null }), finish("stop")])).toEqual([]);
  });

  it("A5: same index with a different id is a new call", () => {
    expect(
      blocks([tool(0, "a", "f", "{}"), tool(0, "b", "g", "{}"), finish("tool_calls")]),
    ).toEqual([
      "start0 tool_use a f",
      "delta0 {}",
      "stop0",
      "start1 tool_use b g",
      "delta1 {}",
      "stop1",
    ]);
  });

  it("A5: no index and an unseen id is a new call", () => {
    expect(
      blocks([
        tool(undefined, "a", "f", '{"x'),
        tool(undefined, "a", undefined, '":1}'),
        tool(undefined, "b", "g", "{}"),
        finish("tool_calls"),
      ]),
    ).toEqual([
      "start0 tool_use a f",
      'delta0 {"x',
      'delta0 ":1}',
      "stop0",
      "start1 tool_use b g",
      "delta1 {}",
      "stop1",
    ]);
  });

  it("A5: neither index nor id: a name starts a call, what has none goes on with the last", () => {
    expect(
      blocks([
        tool(undefined, undefined, "f", '{"x":'),
        tool(undefined, undefined, undefined, "1}"),
        tool(undefined, undefined, "g", "{}"),
        finish("tool_calls"),
      ]),
    ).toEqual([
      "start0 tool_use toolu_2 f",
      'delta0 {"x":',
      "delta0 1}",
      "stop0",
      "start1 tool_use toolu_3 g",
      "delta1 {}",
      "stop1",
    ]);
  });

  it("A5: arguments wait for the name", () => {
    expect(
      blocks([tool(0, "a", "", '{"x"'), tool(0, "", "f", ":1}"), finish("tool_calls")]),
    ).toEqual(["start0 tool_use a f", 'delta0 {"x"', "delta0 :1}", "stop0"]);
  });

  it("A5: a call that is never named is left out and noted", () => {
    const stream = openStream();
    const out = relay(
      stream,
      engineStream([tool(0, "a", "", "{}"), finish("tool_calls"), "[DONE]"]),
    );
    expect(summarize(out).slice(2)).toEqual(["message_delta end_turn", "message_stop"]);
    expect(stream.anomalies).toEqual(["tool-call-without-name"]);
  });

  it("A6: arguments go out as they came; empty ones do not", () => {
    expect(
      blocks([
        tool(0, "a", "f", ""),
        tool(0, undefined, undefined, '{ "é":'),
        tool(0, undefined, undefined, " 1.0}"),
        finish("tool_calls"),
      ]),
    ).toEqual(["start0 tool_use a f", 'delta0 { "é":', "delta0  1.0}", "stop0"]);
  });

  it("A7: a second call waits until the first one's JSON is whole", () => {
    expect(
      blocks([
        tool(0, "a", "f", '{"x"'),
        tool(1, "b", "g", '{"y"'),
        tool(0, undefined, undefined, ":1}"),
        tool(1, undefined, undefined, ":2}"),
        finish("tool_calls"),
      ]),
    ).toEqual([
      "start0 tool_use a f",
      'delta0 {"x"',
      "delta0 :1}",
      "stop0",
      "start1 tool_use b g",
      'delta1 {"y"',
      "delta1 :2}",
      "stop1",
    ]);
  });

  it("A7: or until the finish", () => {
    expect(
      blocks([
        tool(0, "a", "f", '{"x"'),
        tool(1, "b", "g", "{}"),
        c({ content: "t" }),
        finish("tool_calls"),
      ]),
    ).toEqual([
      "start0 tool_use a f",
      'delta0 {"x"',
      "stop0",
      "start1 tool_use b g",
      "delta1 {}",
      "stop1",
      "start2 text",
      "delta2 t",
      "stop2",
    ]);
  });

  it("A7: no argument byte is lost or lands in another block, however calls interleave", () => {
    const calls = fc.array(fc.tuple(fc.nat(3), fc.nat(5)), { minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(calls, fc.boolean(), (order, isCutOff) => {
        const texts = [0, 1, 2, 3].map((index) =>
          JSON.stringify({ a: 'b}"{'.repeat(index), n: [index] }),
        );
        const sent = [0, 0, 0, 0];
        const started = new Set<number>();
        const lines: object[] = [];
        const send = (index: number, size: number) => {
          const text = texts[index]?.slice(sent[index], (sent[index] ?? 0) + size) ?? "";
          sent[index] = (sent[index] ?? 0) + size;
          lines.push(
            started.has(index)
              ? tool(index, undefined, undefined, text)
              : tool(index, `id${index}`, `f${index}`, text),
          );
          started.add(index);
        };
        for (const [index, size] of order) send(index, size);
        if (!isCutOff) for (const index of started) send(index, 100);
        const out = relay(openStream(), engineStream([...lines, finish("tool_calls"), "[DONE]"]));
        const inputs = new Map<string, string>();
        let open = "";
        for (const [name, data] of readEvents(out)) {
          if (name === "content_block_start") open = (data["content_block"] as { id: string }).id;
          if (name === "content_block_delta") {
            const { partial_json } = data["delta"] as { partial_json: string };
            inputs.set(open, (inputs.get(open) ?? "") + partial_json);
          }
        }
        for (const index of started) {
          expect(inputs.get(`id${index}`) ?? "").toBe(texts[index]?.slice(0, sent[index]));
        }
      }),
      { numRuns: 300 },
    );
  });

  it("A8: missing ids are generated, repeated ones get a suffix, others stay", () => {
    expect(
      blocks([
        tool(0, undefined, "f", "{}"),
        tool(1, "x", "g", "{}"),
        tool(2, "x", "h", "{}"),
        finish("tool_calls"),
      ]),
    ).toEqual([
      "start0 tool_use toolu_2 f",
      "delta0 {}",
      "stop0",
      "start1 tool_use x g",
      "delta1 {}",
      "stop1",
      "start2 tool_use x_2 h",
      "delta2 {}",
      "stop2",
    ]);
  });

  it.each([[[]], [null]])("A9: tool_calls %j is nothing", (calls) => {
    expect(blocks([c({ content: "a", tool_calls: calls }), finish("stop")])).toEqual([
      "start0 text",
      "delta0 a",
      "stop0",
    ]);
  });

  it("A10: the finish reason alone closes nothing", () => {
    expect(run([c({ content: "a" }), finish("stop")], "open")).toEqual([
      "message_start",
      "ping",
      "start0 text",
      "delta0 a",
    ]);
  });

  it.each([
    ["usage chunk", [usage(3, 1)]],
    ["[DONE]", ["[DONE]"]],
    ["end of file", []],
  ])("A11: %s after the finish closes once, nothing after", (_name, tail) => {
    const stream = openStream();
    const out = relay(
      stream,
      engineStream([
        c({ content: "a" }),
        finish("stop"),
        ...tail,
        "[DONE]",
        c({ content: "late" }),
        "[DONE]",
      ]),
    );
    expect(summarize(out)).toEqual([
      "message_start",
      "ping",
      "start0 text",
      "delta0 a",
      "stop0",
      "message_delta end_turn",
      "message_stop",
    ]);
    expect(out).not.toContain("[DONE]");
    expect([stream.outcome, stream.isAnswered]).toEqual(["completed", true]);
  });

  it("A11: usage buckets do not overlap: cached tokens are not input tokens", () => {
    const out = relay(
      openStream(),
      engineStream([
        c({ content: "a" }),
        finish("stop"),
        usage(9, 4, { prompt_tokens_details: { cached_tokens: 6 } }),
      ]),
    );
    const delta = readEvents(out).find(([name]) => name === "message_delta")?.[1];
    expect(delta?.["usage"]).toEqual({
      input_tokens: 3,
      output_tokens: 4,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: 6,
    });
  });

  it("A12: usage in every chunk: the last value wins and closes nothing early", () => {
    const stats = (completion: number) => ({
      usage: { prompt_tokens: 5, completion_tokens: completion },
    });
    const out = relay(
      openStream(),
      engineStream([
        { ...c({ content: "a" }), ...stats(1) },
        { ...c({ content: "b" }), ...stats(2) },
        { ...finish("stop"), ...stats(2) },
        "[DONE]",
      ]),
    );
    expect(summarize(out)).toEqual([
      "message_start",
      "ping",
      "start0 text",
      "delta0 a",
      "delta0 b",
      "stop0",
      "message_delta end_turn",
      "message_stop",
    ]);
    const [start, delta] = [readEvents(out)[0]?.[1], readEvents(out).at(-2)?.[1]];
    expect(start?.["message"]).toMatchObject({ usage: { input_tokens: 5, output_tokens: 0 } });
    expect(delta?.["usage"]).toMatchObject({ input_tokens: 5, output_tokens: 2 });
  });

  it.each<[string, (object | string)[], StreamEnd, string]>([
    [
      "an error chunk",
      [c({ content: "a" }), { error: { message: "m", code: 429 } }],
      "eof",
      "rate_limit_error",
    ],
    [
      "an error without code",
      [c({ content: "a" }), { error: { message: "m" } }],
      "eof",
      "api_error",
    ],
    ["end of file without a finish", [c({ content: "a" })], "eof", "api_error"],
    ["[DONE] without a finish", [c({ content: "a" }), "[DONE]"], "eof", "api_error"],
    ["a reset", [c({ content: "a" })], "reset", "api_error"],
    [
      "a reset after the finish but before the close",
      [c({ content: "a" }), finish("stop")],
      "reset",
      "api_error",
    ],
  ])("A13: %s is an error event, never a clean end", (_name, lines, end, type) => {
    const stream = openStream();
    const events = summarize(relay(stream, engineStream(lines), end));
    expect(events).toEqual(["message_start", "ping", "start0 text", "delta0 a", `error ${type}`]);
    expect([stream.outcome, stream.isAnswered]).toEqual(["failed", false]);
  });

  it("A13: nothing at all is an error too", () => {
    expect(run([])).toEqual(["error api_error"]);
  });

  it("A14: other choices are not shown", () => {
    const other = { choices: [{ index: 1, delta: { content: "other" } }] };
    expect(blocks([c({ content: "a" }), other, finish("stop")])).toEqual([
      "start0 text",
      "delta0 a",
      "stop0",
    ]);
  });

  it("A15: keep-alive is a ping, and none after the end", () => {
    const stream = openStream();
    expect(stream.keepAlive().toString()).toBe('event: ping\ndata: {"type":"ping"}\n\n');
    relay(stream, engineStream([finish("stop"), "[DONE]"]));
    expect(stream.keepAlive()).toHaveLength(0);
  });

  it.each<[string, (object | string)[], string, string | null]>([
    ["stop", [finish("stop")], "end_turn", null],
    ["stop with a tool block", [tool(0, "a", "f", "{}"), finish("stop")], "tool_use", null],
    ["tool_calls", [tool(0, "a", "f", "{}"), finish("tool_calls")], "tool_use", null],
    ["function_call", [tool(0, "a", "f", "{}"), finish("function_call")], "tool_use", null],
    ["tool_calls without any tool", [c({ content: "a" }), finish("tool_calls")], "end_turn", null],
    ["length", [finish("length")], "max_tokens", null],
    [
      "length although tools were emitted",
      [tool(0, "a", "f", "{}"), finish("length")],
      "max_tokens",
      null,
    ],
    [
      "tool_calls with arguments cut off",
      [tool(0, "a", "f", '{"x'), finish("tool_calls")],
      "max_tokens",
      null,
    ],
    ["content_filter", [finish("content_filter")], "refusal", null],
    [
      "a stop string of the request",
      [finish("stop", { stop_reason: "END" })],
      "stop_sequence",
      "END",
    ],
    [
      "a stop string of the engine's own",
      [finish("stop", { stop_reason: "<|im_end|>" })],
      "end_turn",
      null,
    ],
    ["a stop token id", [finish("stop", { stop_reason: 151645 })], "end_turn", null],
    ["anything else", [finish("abort")], "end_turn", null],
  ])("stop reason: %s", (_name, lines, reason, sequence) => {
    const out = relay(openStream(), engineStream([...lines, usage(1, 1)]));
    const delta = readEvents(out).find(([name]) => name === "message_delta")?.[1];
    expect(delta?.["delta"]).toEqual({ stop_reason: reason, stop_sequence: sequence });
  });

  it("reads a last event without a blank line, and survives chunks that are no chunks", () => {
    const bytes = Buffer.concat([
      engineStream(["3", "null", "[]", "{oops", { choices: [null, 3] }, c({ content: "a" })]),
      Buffer.from(`data: ${JSON.stringify(finish("stop"))}`),
    ]);
    expect(summarize(relay(openStream(), bytes))).toEqual([
      "message_start",
      "ping",
      "start0 text",
      "delta0 a",
      "stop0",
      "message_delta end_turn",
      "message_stop",
    ]);
  });

  it("a whole answer gives the events that its stream gives", () => {
    const whole = {
      choices: [
        {
          index: 0,
          finish_reason: "tool_calls",
          message: {
            role: "assistant",
            reasoning_content: "hm",
            content: "Hi",
            tool_calls: [
              { id: "a", type: "function", function: { name: "f", arguments: '{"x":1}' } },
            ],
          },
        },
      ],
      usage: { prompt_tokens: 9, completion_tokens: 4 },
    };
    const out = openStream()
      .pushWhole(Buffer.from(JSON.stringify(whole)))
      .toString();
    expect(summarize(out)).toEqual([
      "message_start",
      "ping",
      "start0 thinking",
      "delta0 hm",
      "delta0 signature",
      "stop0",
      "start1 text",
      "delta1 Hi",
      "stop1",
      "start2 tool_use a f",
      'delta2 {"x":1}',
      "stop2",
      "message_delta tool_use",
      "message_stop",
    ]);
    expect(readEvents(out)[0]?.[1]["message"]).toMatchObject({ usage: { input_tokens: 9 } });
  });

  it.each(["", "oops", "[]", "{}", '{"choices":[]}', '{"error":{"message":"m"}}'])(
    "a whole answer %j is an error",
    (text) => {
      const stream = openStream();
      expect(summarize(stream.pushWhole(Buffer.from(text)).toString())).toEqual([
        "error api_error",
      ]);
      expect(stream.outcome).toBe("failed");
    },
  );

  it("block invariants hold, and every chunking gives the same bytes, for any chunks", () => {
    const piece = fc.oneof(
      fc.constantFrom<object | string>(
        c({ content: "a" }),
        c({ content: "é😀" }),
        c({ reasoning: "r" }),
        c({ content: "" }),
        finish("stop"),
        finish("tool_calls"),
        usage(1, 2),
        "[DONE]",
        "junk",
        c({ tool_calls: [] }),
      ),
      fc
        .tuple(
          fc.option(fc.nat(2), { nil: undefined }),
          fc.constantFrom("a", "b", "", undefined),
          fc.constantFrom("f", "", undefined),
          fc.constantFrom("", "{", "}", '{"x":1}', '"'),
        )
        .map((parts) => tool(...parts)),
    );
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 25 }),
        fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1, maxLength: 5 }),
        (lines, sizes) => {
          const bytes = engineStream(lines);
          const out = relay(openStream(), bytes);
          expect(relay(openStream(), bytes, "eof", sizes)).toBe(out);
          let open: number | undefined;
          let next = 0;
          const names = readEvents(out).map(([name, data]) => {
            const index = data["index"] as number;
            if (name === "content_block_start") {
              expect([open, index]).toEqual([undefined, next]);
              open = next;
              next += 1;
            }
            if (name === "content_block_delta") expect(index).toBe(open);
            if (name === "content_block_stop") {
              expect(index).toBe(open);
              open = undefined;
            }
            return name;
          });
          const last = names.at(-1);
          expect(["message_stop", "error"]).toContain(last);
          if (last === "message_stop") expect(open).toBeUndefined();
          expect(
            names.filter(
              (name) => name === "message_start" || name === "message_stop" || name === "error",
            ).length,
          ).toBeLessThanOrEqual(2);
        },
      ),
      { numRuns: 400 },
    );
  });
});
