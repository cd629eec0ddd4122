import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { plan, readEvents } from "./run-dialect.ts";

/** An engine's whole answer, with whatever it may lie about. */
interface Lie {
  readonly reasoning?: string;
  readonly content?: string | null;
  readonly calls?: readonly (readonly [id: string | null, name: string, args: string])[];
  readonly finish?: string | null;
  readonly stopReason?: string | number;
}

function wholeAnswer({ reasoning, content, calls, finish, stopReason }: Lie): Buffer {
  const tool_calls = calls?.map(([id, name, args]) => ({
    ...(id === null ? {} : { id }),
    type: "function",
    function: { name, arguments: args },
  }));
  const message = {
    role: "assistant",
    content: content ?? null,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(tool_calls === undefined ? {} : { tool_calls }),
  };
  const choice = { index: 0, message, finish_reason: finish ?? null, stop_reason: stopReason };
  const usage = { prompt_tokens: 9, completion_tokens: 4 };
  return Buffer.from(JSON.stringify({ choices: [choice], usage }));
}

interface Message {
  content: Record<string, unknown>[];
  stop_reason: string | null;
  stop_sequence: string | null;
  usage: Record<string, number>;
}

const messagesRequest = { model: "m", max_tokens: 9, messages: [], stop_sequences: ["END"] };

function asMessage(lie: Lie): Message {
  const reply = plan(messagesDialect, messagesRequest).encodeResponse({
    status: 200,
    headers: {},
    body: wholeAnswer(lie),
  });
  return JSON.parse(reply.body.toString()) as Message;
}

/** What a client puts together from the events of the same answer as a stream. */
function asStreamedMessage(lie: Lie): Message {
  const stream = plan(messagesDialect, { ...messagesRequest, stream: true }).openStream();
  const text = stream.pushWhole(wholeAnswer(lie)).toString();
  let message: Message | undefined;
  const inputs: string[] = [];
  for (const [name, data] of readEvents(text)) {
    if (name === "message_start") message = data["message"] as unknown as Message;
    const index = data["index"] as number;
    if (name === "content_block_start") {
      message?.content.push(data["content_block"] as Record<string, unknown>);
      inputs[index] = "";
    }
    const block = message?.content[index];
    const delta = data["delta"] as Record<string, string> | undefined;
    if (name === "content_block_delta" && block !== undefined) {
      if (delta?.["type"] === "input_json_delta") inputs[index] += delta["partial_json"] ?? "";
      for (const key of ["text", "thinking", "signature"]) {
        if (delta?.[key] !== undefined) block[key] = `${block[key] as string}${delta[key]}`;
      }
    }
    if (name === "content_block_stop" && block?.["type"] === "tool_use") {
      block["input"] = parseInput(inputs[index] ?? "");
    }
    if (name === "message_delta" && message !== undefined) {
      Object.assign(message, delta, { usage: data["usage"] });
    }
  }
  if (message === undefined) throw new Error("no message_start");
  return message;
}

/** As the non-streamed form has it: an object, or an empty one for what is none. */
function parseInput(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
  } catch {
    return {};
  }
}

const lies: readonly [string, Lie, string, string | null][] = [
  ["stop", { content: "a", finish: "stop" }, "end_turn", null],
  [
    "stop although a tool was called",
    { calls: [["a", "f", "{}"]], finish: "stop" },
    "tool_use",
    null,
  ],
  ["tool_calls without any", { content: "a", finish: "tool_calls" }, "end_turn", null],
  ["tool_calls, named", { calls: [["a", "f", "{}"]], finish: "tool_calls" }, "tool_use", null],
  ["function_call", { calls: [["a", "f", "{}"]], finish: "function_call" }, "tool_use", null],
  [
    "tool_calls with arguments cut off",
    { calls: [["a", "f", '{"x']], finish: "tool_calls" },
    "max_tokens",
    null,
  ],
  [
    "length although a tool was called",
    { calls: [["a", "f", "{}"]], finish: "length" },
    "max_tokens",
    null,
  ],
  ["content_filter", { content: "a", finish: "content_filter" }, "refusal", null],
  [
    "a stop string of the request",
    { content: "a", finish: "stop", stopReason: "END" },
    "stop_sequence",
    "END",
  ],
  [
    "a stop string of the engine's own",
    { content: "a", finish: "stop", stopReason: "<|im_end|>" },
    "end_turn",
    null,
  ],
  ["a stop token", { content: "a", finish: "stop", stopReason: 151_645 }, "end_turn", null],
  ["what nobody knows", { content: "a", finish: "abort" }, "end_turn", null],
];

describe("whole answers of engines that lie, as messages", () => {
  it.each(lies)("finish reason: %s", (_name, lie, stop_reason, stop_sequence) => {
    expect(asMessage(lie)).toMatchObject({ stop_reason, stop_sequence });
    expect(asStreamedMessage(lie)).toMatchObject({ stop_reason, stop_sequence });
  });

  it("ids that are missing or repeated are made unique, others stay", () => {
    const calls = [
      ["a", "f", "{}"],
      ["a", "g", "{}"],
      [null, "h", "{}"],
      ["b", "i", "{}"],
    ] as const;
    const { content } = asMessage({ calls, finish: "tool_calls" });
    const ids = content.map((block) => block["id"] as string);
    expect([ids[0], ids[3]]).toEqual(["a", "b"]);
    expect(ids[2]).toMatch(/^toolu_/);
    expect(new Set(ids).size).toBe(4);
    expect(content.map((block) => block["name"])).toEqual(["f", "g", "h", "i"]);
  });
});

describe("streamed and not, an answer says the same", () => {
  const text = fc.constantFrom("", "a", "é😀\n", '{"x":1}');
  const lie: fc.Arbitrary<Lie> = fc.record(
    {
      reasoning: text,
      content: fc.option(text),
      calls: fc.array(
        fc.tuple(
          fc.constantFrom("a", "b", "", null),
          fc.constantFrom("f", "g"),
          fc.constantFrom("", "{}", '{"x":', '{"b": 1.0, "a": [2]}', "[1]", "oops"),
        ),
        { maxLength: 4 },
      ),
      finish: fc.constantFrom("stop", "tool_calls", "length", "content_filter", "abort"),
      stopReason: fc.constantFrom("END", "x", 7),
    },
    { requiredKeys: ["finish"] },
  );

  it("as a message", () => {
    fc.assert(
      fc.property(lie, (told) => {
        expect(asStreamedMessage(told)).toEqual(asMessage(told));
      }),
      { numRuns: 300 },
    );
  });

  it("as a response", () => {
    const request = {
      model: "m",
      input: "hi",
      tools: [
        { type: "function", name: "f" },
        { type: "custom", name: "g" },
      ],
    };
    fc.assert(
      fc.property(lie, (told) => {
        const body = wholeAnswer(told);
        const reply = plan(responsesDialect, request).encodeResponse({
          status: 200,
          headers: {},
          body,
        });
        const stream = plan(responsesDialect, { ...request, stream: true }).openStream();
        const last = readEvents(stream.pushWhole(body).toString()).at(-1)?.[1];
        expect(JSON.parse(reply.body.toString())).toEqual(last?.["response"]);
      }),
      { numRuns: 300 },
    );
  });
});
