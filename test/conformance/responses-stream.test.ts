import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { DialectStream } from "../../sidecar/dialects/dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { engineStream, plan, readEvents, relay, type StreamEnd } from "./run-dialect.ts";

const request = {
  model: "gpt-x",
  input: "hi",
  stream: true,
  include: ["reasoning.encrypted_content"],
  tools: [
    { type: "function", name: "shell", parameters: { type: "object" } },
    { type: "custom", name: "apply_patch" },
    { type: "namespace", name: "agents", tools: [{ type: "function", name: "spawn" }] },
  ],
};

type Item = Readonly<Record<string, unknown>> & { id: string; type: string; status: string };
type Event = Readonly<Record<string, unknown>> & {
  type: string;
  sequence_number: number;
  output_index: number;
  item: Item;
  delta: string;
  response: {
    status: string;
    output: Item[];
    usage: object;
    error: object;
    incomplete_details: object;
  };
};

function openStream(): DialectStream {
  return plan(responsesDialect, request).openStream();
}

function parse(text: string): Event[] {
  const events = readEvents(text).map(([name, data]) => {
    expect(data["type"]).toBe(name);
    return data as unknown as Event;
  });
  expect(events.map((event) => event.sequence_number)).toEqual(
    events.map((_event, index) => index),
  );
  return events;
}

/** Short form: `added 0 message`, `output_text.delta 0 Hi`, `completed`. */
function summarize(text: string): string[] {
  return parse(text).map((event) => {
    const short = event.type.replace("response.", "");
    if (short === "output_item.added") return `added ${event.output_index} ${event.item.type}`;
    if (short === "output_item.done") return `done ${event.output_index} ${event.item.status}`;
    if (short.endsWith(".delta")) return `${short} ${event.output_index} ${event.delta}`;
    if (event.output_index !== undefined) return `${short} ${event.output_index}`;
    return short;
  });
}

const c = (delta: object, more: object = {}) => ({ choices: [{ index: 0, delta, ...more }] });
const finish = (reason: string) => c({}, { finish_reason: reason });
const usage = (prompt: number, completion: number, more: object = {}) => ({
  choices: [],
  usage: { prompt_tokens: prompt, completion_tokens: completion, ...more },
});
const tool = (
  index: number | undefined,
  id: string | undefined,
  name: string | undefined,
  args: string,
) => c({ tool_calls: [{ index, id, function: { name, arguments: args } }] });

function events(lines: readonly (object | string)[], end: StreamEnd = "eof"): Event[] {
  return parse(relay(openStream(), engineStream(lines), end));
}

function run(lines: readonly (object | string)[], end: StreamEnd = "eof"): string[] {
  return summarize(relay(openStream(), engineStream(lines), end));
}

/** Without the two opening events and the closing one. */
function middle(lines: readonly (object | string)[]): string[] {
  const all = run([...lines, finish("stop"), usage(1, 1), "[DONE]"]);
  expect(all.slice(0, 2)).toEqual(["created", "in_progress"]);
  expect(all.at(-1)).toBe("completed");
  return all.slice(2, -1);
}

describe("chat chunks -> Responses events", () => {
  it("R1: the first chunk creates the response, sequence numbers count from 0", () => {
    const [created, progress] = events([c({ role: "assistant", content: "" })], "open");
    expect(created).toMatchObject({
      type: "response.created",
      sequence_number: 0,
      response: {
        id: "resp_1",
        object: "response",
        created_at: 1_700_000_000,
        status: "in_progress",
        model: "gpt-x",
        output: [],
        usage: null,
      },
    });
    expect(progress).toMatchObject({ type: "response.in_progress", sequence_number: 1 });
  });

  it("R2: reasoning is an item with a content part, closed where something else begins", () => {
    expect(
      middle([c({ reasoning_content: "a" }), c({ reasoning: "b" }), c({ content: "t" })]),
    ).toEqual([
      "added 0 reasoning",
      "content_part.added 0",
      "reasoning_text.delta 0 a",
      "reasoning_text.delta 0 b",
      "reasoning_text.done 0",
      "content_part.done 0",
      "done 0 completed",
      "added 1 message",
      "content_part.added 1",
      "output_text.delta 1 t",
      "output_text.done 1",
      "content_part.done 1",
      "done 1 completed",
    ]);
  });

  it("R2: the reasoning item carries its text, and sealed for a harness that replays it", () => {
    const done = events([c({ reasoning: "höm" }), finish("stop"), "[DONE]"]).find(
      (event) => event.type === "response.output_item.done",
    );
    expect(done?.item).toMatchObject({
      type: "reasoning",
      summary: [],
      content: [{ type: "reasoning_text", text: "höm" }],
    });
    const replay = plan(responsesDialect, {
      input: [
        { ...done?.item, content: undefined },
        { role: "assistant", content: "x" },
      ],
    });
    expect(JSON.parse(replay.upstreamBody.toString())).toMatchObject({
      messages: [{ reasoning_content: "höm", content: "x" }],
    });
  });

  it("R3: content is a message item", () => {
    const all = events([
      c({ content: "Hi" }),
      c({ content: "" }),
      c({ content: null }),
      c({ content: "!" }),
      finish("stop"),
      "[DONE]",
    ]).slice(2);
    expect(all.map((event) => event.type.replace("response.", ""))).toEqual([
      "output_item.added",
      "content_part.added",
      "output_text.delta",
      "output_text.delta",
      "output_text.done",
      "content_part.done",
      "output_item.done",
      "completed",
    ]);
    expect(all[0]?.item).toEqual({
      id: "msg_2",
      type: "message",
      status: "in_progress",
      role: "assistant",
      content: [],
    });
    expect(all[1]).toMatchObject({
      item_id: "msg_2",
      content_index: 0,
      part: { type: "output_text", text: "", annotations: [] },
    });
    expect(all[2]).toMatchObject({
      item_id: "msg_2",
      output_index: 0,
      content_index: 0,
      delta: "Hi",
      logprobs: [],
    });
    expect(all[6]?.item).toMatchObject({
      status: "completed",
      content: [{ type: "output_text", text: "Hi!", annotations: [] }],
    });
  });

  it("R4: a tool call, arguments as they came, both kinds of done", () => {
    const all = events([
      tool(0, "call_a", "shell", ""),
      tool(0, undefined, undefined, '{"x"'),
      tool(0, undefined, undefined, ":1}"),
      finish("tool_calls"),
      "[DONE]",
    ]).slice(2);
    expect(all.map((event) => event.type.replace("response.", ""))).toEqual([
      "output_item.added",
      "function_call_arguments.delta",
      "function_call_arguments.delta",
      "function_call_arguments.done",
      "output_item.done",
      "completed",
    ]);
    expect(all[0]?.item).toEqual({
      id: "fc_2",
      type: "function_call",
      status: "in_progress",
      call_id: "call_a",
      name: "shell",
      arguments: "",
    });
    expect(all[3]).toMatchObject({ item_id: "fc_2", name: "shell", arguments: '{"x":1}' });
    expect(all[4]?.item).toMatchObject({
      call_id: "call_a",
      arguments: '{"x":1}',
      status: "completed",
    });
  });

  it("R4: calls may be open at the same time, interleaving passes through", () => {
    expect(
      middle([
        c({ content: "t" }),
        tool(0, "a", "shell", "1"),
        tool(1, "b", "shell", "2"),
        tool(0, undefined, undefined, "3"),
        c({ content: "u" }),
      ]),
    ).toEqual([
      "added 0 message",
      "content_part.added 0",
      "output_text.delta 0 t",
      "added 1 function_call",
      "function_call_arguments.delta 1 1",
      "added 2 function_call",
      "function_call_arguments.delta 2 2",
      "function_call_arguments.delta 1 3",
      "output_text.delta 0 u",
      "output_text.done 0",
      "content_part.done 0",
      "done 0 completed",
      "function_call_arguments.done 1",
      "done 1 completed",
      "function_call_arguments.done 2",
      "done 2 completed",
    ]);
  });

  it("R4: arguments wait for the name; ids are generated and kept apart", () => {
    const all = events([
      tool(0, "a", "", "{"),
      tool(0, undefined, "shell", "}"),
      tool(1, "a", "shell", "{}"),
      tool(2, undefined, "shell", "{}"),
      finish("tool_calls"),
      "[DONE]",
    ]);
    const output = all.at(-1)?.response.output ?? [];
    expect(output.map((item) => [item["call_id"], item["arguments"]])).toEqual([
      ["a", "{}"],
      ["a_2", "{}"],
      ["call_4", "{}"],
    ]);
  });

  it.each<[string, object[], [string, string][]]>([
    [
      "the same index for another id",
      [tool(0, "a", "shell", "{}"), tool(0, "b", "shell", "[]")],
      [
        ["a", "{}"],
        ["b", "[]"],
      ],
    ],
    [
      "no index: by id, whichever comes",
      [
        tool(undefined, "a", "shell", '{"x'),
        tool(undefined, "b", "shell", "["),
        tool(undefined, "a", undefined, '":1}'),
        tool(undefined, "b", undefined, "]"),
      ],
      [
        ["a", '{"x":1}'],
        ["b", "[]"],
      ],
    ],
    [
      "neither: a name starts a call",
      [
        tool(undefined, undefined, "shell", '{"x":'),
        tool(undefined, undefined, undefined, "1}"),
        tool(undefined, undefined, "shell", "{}"),
      ],
      [
        ["call_", '{"x":1}'],
        ["call_", "{}"],
      ],
    ],
    [
      "interleaved to the last byte",
      [
        tool(0, "a", "shell", ""),
        tool(1, "b", "shell", ""),
        ...["{", "}"].flatMap((byte) => [
          tool(0, undefined, undefined, byte),
          tool(1, undefined, undefined, byte),
        ]),
      ],
      [
        ["a", "{}"],
        ["b", "{}"],
      ],
    ],
  ])("R4: tool calls with %s", (_name, lines, expected) => {
    const all = events([...lines, finish("tool_calls"), "[DONE]"]);
    const output = all.at(-1)?.response.output ?? [];
    expect(output.map((item) => item["arguments"])).toEqual(expected.map(([, args]) => args));
    for (const [index, [id]] of expected.entries()) {
      expect(String(output[index]?.["call_id"]).startsWith(id)).toBe(true);
    }
    // What is told piece by piece is what the item holds in the end.
    for (const [index, [, args]] of expected.entries()) {
      const deltas = all.filter(
        (event) =>
          event.type === "response.function_call_arguments.delta" && event.output_index === index,
      );
      expect(deltas.map((event) => event.delta).join("")).toBe(args);
    }
  });

  it("R4: a namespaced tool is mapped back", () => {
    const all = events([tool(0, "a", "agents__spawn", "{}"), finish("tool_calls"), "[DONE]"]);
    expect(all.at(-1)?.response.output).toMatchObject([
      { type: "function_call", name: "spawn", namespace: "agents", arguments: "{}" },
    ]);
  });

  it("R5: a custom tool shows the text inside its JSON", () => {
    const all = events([
      tool(0, "a", "apply_patch", '{"input":"*** Be'),
      tool(0, undefined, undefined, 'gin\\n"}'),
      finish("tool_calls"),
      "[DONE]",
    ]).slice(2);
    expect(all.map((event) => event.type.replace("response.", ""))).toEqual([
      "output_item.added",
      "custom_tool_call_input.delta",
      "custom_tool_call_input.done",
      "output_item.done",
      "completed",
    ]);
    expect(all[1]?.delta).toBe("*** Begin\n");
    expect(all[3]?.item).toMatchObject({
      type: "custom_tool_call",
      call_id: "a",
      name: "apply_patch",
      input: "*** Begin\n",
    });
  });

  it("R5: arguments that are not that JSON are shown as they are", () => {
    const all = events([tool(0, "a", "apply_patch", "*** Begin"), finish("tool_calls"), "[DONE]"]);
    expect(all.at(-1)?.response.output).toMatchObject([{ input: "*** Begin" }]);
  });

  it.each(["stop", "tool_calls", "function_call", "abort"])(
    "R6: %s completes with the whole output and usage of numbers",
    (reason) => {
      const last = events([
        c({ content: "Hi" }),
        finish(reason),
        usage(9, 4, {
          prompt_tokens_details: { cached_tokens: 6 },
          completion_tokens_details: { reasoning_tokens: 2 },
        }),
      ]).at(-1);
      expect(last).toMatchObject({
        type: "response.completed",
        response: { status: "completed", output: [{ content: [{ text: "Hi" }] }] },
      });
      expect(last?.response.usage).toEqual({
        input_tokens: 9,
        input_tokens_details: { cached_tokens: 6 },
        output_tokens: 4,
        output_tokens_details: { reasoning_tokens: 2 },
        total_tokens: 13,
      });
    },
  );

  it("R6: an engine without usage still gives numbers: Codex fails on null", () => {
    expect(events([finish("stop"), "[DONE]"]).at(-1)?.response.usage).toEqual({
      input_tokens: 0,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 0,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 0,
    });
  });

  it.each([
    ["length", "max_output_tokens"],
    ["content_filter", "content_filter"],
  ])("R7: %s is incomplete", (reason, detail) => {
    const last = events([c({ content: "Hi" }), finish(reason), "[DONE]"]).at(-1);
    expect(last).toMatchObject({
      type: "response.incomplete",
      response: {
        status: "incomplete",
        incomplete_details: { reason: detail },
        output: [{ status: "incomplete" }],
      },
    });
  });

  it.each<[string, (object | string)[], StreamEnd, string]>([
    ["an error chunk", [{ error: { message: "m", code: 500 } }], "eof", "server_error"],
    [
      "a context overflow",
      [
        {
          error: {
            message:
              "This model's maximum context length is 10 tokens. However, you requested 12 tokens",
            code: 400,
          },
        },
      ],
      "eof",
      "context_length_exceeded",
    ],
    ["a rate limit", [{ error: { message: "m", code: 429 } }], "eof", "rate_limit_exceeded"],
    [
      "no quota",
      [{ error: { message: "m", code: "insufficient_quota" } }],
      "eof",
      "insufficient_quota",
    ],
    ["end of file without a finish", [], "eof", "server_error"],
    ["[DONE] without a finish", ["[DONE]"], "eof", "server_error"],
    ["a reset", [], "reset", "server_error"],
    ["a reset after the finish", [finish("stop")], "reset", "server_error"],
  ])("R8: %s fails the response, never a clean end", (_name, lines, end, code) => {
    const stream = openStream();
    const all = parse(relay(stream, engineStream([c({ content: "a" }), ...lines]), end));
    expect(all.at(-1)).toMatchObject({
      type: "response.failed",
      response: { status: "failed", error: { code } },
    });
    expect([stream.outcome, stream.isAnswered]).toEqual(["failed", false]);
  });

  it("R8: nothing at all fails with a response to fail", () => {
    expect(run([])).toEqual(["created", "in_progress", "failed"]);
  });

  it("R8: a rate limit of the sidecar's own says when to try again", () => {
    const stream = openStream();
    const out = stream.fail({
      kind: "error",
      error: {
        status: 429,
        reason: "gate-hold-limit",
        message: "held too long",
        retryAfterSeconds: 2,
      },
    });
    expect(parse(out.toString()).at(-1)?.response.error).toEqual({
      code: "rate_limit_exceeded",
      message: "held too long; please try again in 2s",
    });
  });

  it("R9: keep-alives are events with data, before and after the first chunk", () => {
    const stream = openStream();
    const parts = [
      stream.keepAlive(),
      stream.keepAlive(),
      relay(stream, engineStream([c({ content: "a" })]), "open"),
      stream.keepAlive(),
    ].map(String);
    expect(summarize(parts.join(""))).toEqual([
      "created",
      "in_progress",
      "in_progress",
      "added 0 message",
      "content_part.added 0",
      "output_text.delta 0 a",
      "in_progress",
    ]);
    relay(stream, engineStream([finish("stop"), "[DONE]"]));
    expect(stream.keepAlive()).toHaveLength(0);
  });

  it("closes once, ignores what follows, and never says [DONE]", () => {
    const out = relay(
      openStream(),
      engineStream([
        c({ content: "a" }),
        finish("stop"),
        usage(1, 1),
        "[DONE]",
        "[DONE]",
        c({ content: "late" }),
      ]),
    );
    expect(summarize(out).filter((event) => event === "completed")).toHaveLength(1);
    expect(out).not.toMatch(/\[DONE\]|late/);
  });

  it("a whole answer gives the response that its stream ends with", () => {
    const message = {
      role: "assistant",
      reasoning_content: "hm",
      content: "Hi",
      tool_calls: [{ id: "a", function: { name: "apply_patch", arguments: '{"input":"p"}' } }],
    };
    const whole = {
      choices: [{ index: 0, finish_reason: "tool_calls", message }],
      usage: { prompt_tokens: 9, completion_tokens: 4 },
    };
    const bytes = Buffer.from(JSON.stringify(whole));
    const streamed = parse(openStream().pushWhole(bytes).toString()).at(-1)?.response;
    const reply = plan(responsesDialect, request).encodeResponse({
      status: 200,
      headers: { "x-request-id": "r" },
      body: bytes,
    });
    expect(JSON.parse(reply.body.toString())).toEqual(streamed);
    expect(reply.headers).toEqual({ "x-request-id": "r", "content-type": "application/json" });
    expect(streamed?.output.map((item) => item.type)).toEqual([
      "reasoning",
      "message",
      "custom_tool_call",
    ]);
  });

  it.each(["", "oops", "[]", "{}", '{"choices":[]}', '{"error":{"message":"m"}}'])(
    "a whole answer %j fails",
    (text) => {
      const body = Buffer.from(text);
      expect(summarize(openStream().pushWhole(body).toString()).at(-1)).toBe("failed");
      expect(
        plan(responsesDialect, request).encodeResponse({ status: 200, headers: {}, body }),
      ).toMatchObject({ status: 502 });
    },
  );

  it("item invariants hold, and every chunking gives the same bytes, for any chunks", () => {
    const piece = fc.oneof(
      fc.constantFrom<object | string>(
        c({ content: "a" }),
        c({ content: "é😀" }),
        c({ reasoning: "r" }),
        finish("stop"),
        finish("length"),
        usage(1, 2),
        "[DONE]",
        "junk",
      ),
      fc
        .tuple(
          fc.nat(2),
          fc.constantFrom("a", "b", undefined),
          fc.constantFrom("shell", "apply_patch", "constructor", undefined),
          fc.constantFrom("", "{", "}", '{"input":"x"}'),
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
          const open = new Set<number>();
          let added = 0;
          const all = parse(out);
          for (const event of all) {
            if (event.type === "response.output_item.added") {
              expect(event.output_index).toBe(added);
              added += 1;
              open.add(event.output_index);
            } else if (event.output_index !== undefined)
              expect(open.has(event.output_index)).toBe(true);
            if (event.type === "response.output_item.done") open.delete(event.output_index);
          }
          const last = all.at(-1);
          expect(["response.completed", "response.incomplete", "response.failed"]).toContain(
            last?.type,
          );
          if (last?.type !== "response.failed") {
            expect(open.size).toBe(0);
            const done = all.filter((event) => event.type === "response.output_item.done");
            const inOrder = done
              .sort((a, b) => a.output_index - b.output_index)
              .map((event) => event.item.id);
            expect(last?.response.output.map((item) => item.id)).toEqual(inOrder);
          }
        },
      ),
      { numRuns: 400 },
    );
  });
});
