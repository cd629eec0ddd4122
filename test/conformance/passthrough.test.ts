import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createCallCapture } from "../../sidecar/dialects/call-capture.ts";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import { completionsDialect } from "../../sidecar/dialects/completions/completions-dialect.ts";
import type { EngineProfile, PlannedCall } from "../../sidecar/dialects/dialect.ts";
import { createSseDecoder } from "../../sidecar/sse/sse-decoder.ts";
import { playScript } from "./play-script.ts";
import { engineStream, plan, relay } from "./run-dialect.ts";
import { type VllmOptions, vllmScript } from "./vllm-script.ts";

const chat = { model: "m", messages: [{ role: "user", content: "héllo 😀 world" }] };
const text = { model: "m", prompt: "once upon a time" };
const noIds: EngineProfile = { kind: "sglang", streamsIds: false };
const answers: VllmOptions = {
  answer: () => ({
    reasoning: "let me think",
    content: "Hi there 😀",
    toolCalls: [{ id: "call_1", name: "f", arguments: '{"x": 1}' }],
  }),
};

function capture(bytes: Buffer, isStream: boolean) {
  const calls = createCallCapture();
  if (isStream) for (const block of createSseDecoder().push(bytes)) calls.addBlock(block);
  else calls.addResponse(JSON.parse(bytes.toString()));
  return calls.result();
}

/** What the harness gets through the codec, and what is captured on the way. */
async function through(planned: PlannedCall, options: VllmOptions = {}, sizes?: readonly number[]) {
  const upstream = await playScript(
    vllmScript(options),
    planned.upstreamBody,
    planned.upstreamPath,
  );
  const result = capture(upstream, planned.upstreamStreams);
  if (!planned.upstreamStreams && planned.wantsStream) {
    return { seen: planned.openStream().pushWhole(upstream).toString(), result };
  }
  if (!planned.upstreamStreams) {
    const reply = planned.encodeResponse({ status: 200, headers: {}, body: upstream });
    return { seen: reply.body.toString(), result };
  }
  return { seen: relay(planned.openStream(), upstream, "eof", sizes), result };
}

async function direct(body: object, url: string, options: VllmOptions = {}): Promise<string> {
  return (await playScript(vllmScript(options), Buffer.from(JSON.stringify(body)), url)).toString();
}

const usageAsked = { stream_options: { include_usage: true } };
const cases: [string, object][] = [
  ["plain", {}],
  ["streamed", { stream: true }],
  ["streamed with usage", { stream: true, ...usageAsked }],
  ["n = 3", { n: 3 }],
  ["n = 3 streamed", { n: 3, stream: true }],
  ["ids asked for", { stream: true, return_token_ids: true }],
];

describe("passthrough: the harness sees byte for byte what the engine says without us", () => {
  it.each([
    ...cases,
    [
      "logprobs asked for",
      { logprobs: true, top_logprobs: 0, stream: true, ...usageAsked },
    ] as const,
  ])("chat, %s", async (_name, more) => {
    for (const options of [{}, answers, { ...answers, tokensPerChunk: 3 }]) {
      const body = { ...chat, ...more };
      const { seen, result } = await through(plan(chatDialect, body), options);
      expect(seen).toBe(await direct(body, "/v1/chat/completions", options));
      expect(result.choices.every((choice) => choice.complete)).toBe(true);
      expect(result.choices).toHaveLength("n" in more ? 3 : 1);
    }
  });

  it.each([
    ...cases,
    ["logprobs asked for", { logprobs: 2, stream: true }] as const,
    ["token ids as prompt", { prompt: [5, 6, 7], stream: true }] as const,
  ])("text completions, %s", async (_name, more) => {
    const body = { ...text, ...more };
    const { seen, result } = await through(plan(completionsDialect, body));
    expect(seen).toBe(await direct(body, "/v1/completions"));
    expect(result.choices.map((choice) => choice.incompleteReason)).toEqual(
      result.choices.map(() => undefined),
    );
  });

  it("policy versions are captured and not shown", async () => {
    const policyVersions = [
      { version: 3, start: 0, end: 2 },
      { version: 4, start: 2, end: 6 },
    ];
    const options = { policyVersions, answer: () => ({ content: "one two three four five" }) };
    const { seen, result } = await through(plan(chatDialect, { ...chat, stream: true }), options);
    expect(seen).toBe(await direct({ ...chat, stream: true }, "/v1/chat/completions", options));
    expect(seen).not.toContain("policy_versions");
    expect(result.choices[0]).toMatchObject({ complete: true, policyVersions });
  });

  it("same bytes and same record for every chunking", async () => {
    const planned = plan(chatDialect, { ...chat, stream: true, n: 2 });
    const expected = await through(planned, answers);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.integer({ min: 1, max: 200 }), { minLength: 1, maxLength: 6 }),
        async (sizes) => {
          expect(await through(planned, answers, sizes)).toEqual(expected);
        },
      ),
      { numRuns: 60 },
    );
  });

  it.each<[VllmOptions, string]>([
    [{ ids: "none" }, "prompt-ids-missing"],
    [{ ids: "short" }, "logprobs-count"],
    [{ logprobs: "none" }, "logprobs-missing"],
    [{ logprobs: "nan" }, "logprob-not-finite"],
    [{ logprobs: "clamped" }, "logprob-clamped"],
  ])("an engine with %j is served unharmed and marked incomplete", async (options, reason) => {
    const body = { ...chat, stream: true };
    const { seen, result } = await through(plan(chatDialect, body), options);
    expect(seen).toBe(await direct(body, "/v1/chat/completions"));
    expect(result.choices[0]?.incompleteReason).toBe(reason);
  });
});

describe("engines that stream no ids: asked without streaming, a stream made up", () => {
  it("gives the harness the same content, tool calls and finish", async () => {
    const planned = plan(chatDialect, { ...chat, stream: true, ...usageAsked }, { engine: noIds });
    expect(JSON.parse(planned.upstreamBody.toString())).toMatchObject({
      stream: false,
      return_meta_info: true,
    });
    expect(planned.upstreamBody.toString()).not.toContain("stream_options");
    const { seen, result } = await through(planned, answers);
    expect(result.choices[0]?.complete).toBe(true);
    const made = capture(Buffer.from(seen), true);
    const real = capture(
      Buffer.from(
        await direct({ ...chat, stream: true, ...usageAsked }, "/v1/chat/completions", answers),
      ),
      true,
    );
    expect(made).toEqual(real);
    expect(seen).not.toContain("token_ids");
    expect(seen.endsWith("data: [DONE]\n\n")).toBe(true);
  });

  it("text completions as well, and usage only when asked", async () => {
    const { seen } = await through(
      plan(completionsDialect, { ...text, stream: true }, { engine: noIds }),
    );
    const made = capture(Buffer.from(seen), true);
    const real = capture(
      Buffer.from(await direct({ ...text, stream: true }, "/v1/completions")),
      true,
    );
    expect(made.choices[0]?.text).toBe(real.choices[0]?.text);
    expect(made.usage).toBeNull();
  });

  it("an answer that is none ends in an error event and a failure", () => {
    const stream = plan(chatDialect, { ...chat, stream: true }, { engine: noIds }).openStream();
    expect(stream.pushWhole(Buffer.from("<html>")).toString()).toMatch(
      /^data: {"error":{.*}}\n\n$/,
    );
    expect(stream.outcome).toBe("failed");
  });
});

describe("framing oddities pass through unchanged", () => {
  const oddities = [
    ["comments", ': c\n\ndata: {"choices":[]}\n: in between\n\ndata: [DONE]\n\n'],
    ["CRLF", 'data: {"choices":[]}\r\n\r\ndata: [DONE]\r\n\r\n'],
    ["CR", 'data: {"choices":[]}\r\rdata: [DONE]\r\r'],
    ["no space after the colon", 'data:{"choices":[]}\n\ndata:[DONE]\n\n'],
    ["doubled [DONE]", "data: [DONE]\n\ndata: [DONE]\n\n"],
    ["missing [DONE]", 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'],
    [
      "last event without a blank line",
      'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    ],
    ["data that is no JSON", "data: oops\n\ndata: [DONE]\n\n"],
    ["event names, ids, retry", "event: x\nid: 7\nretry: 1\ndata: {}\n\ndata: [DONE]\n\n"],
    ["multi-line data with nothing to strip", 'data: {"choices":\ndata: []}\n\ndata: [DONE]\n\n'],
    ["an error object", 'data: {"error":{"message":"m","code":500}}\n\ndata: [DONE]\n\n'],
    ["U+2028 inside", 'data: {"x":"\u2028"}\n\ndata: [DONE]\n\n'],
  ] as const;

  it.each(oddities)("%s", (_name, bytes) => {
    for (const size of [1, 2, 3, 7, 1000]) {
      const stream = plan(chatDialect, { ...chat, stream: true }).openStream();
      expect(relay(stream, Buffer.from(bytes), "eof", [size])).toBe(bytes);
      expect(stream.outcome).toBe("completed");
    }
  });

  it("strips inside CRLF framing and inside multi-line data", () => {
    const open = () => plan(chatDialect, { ...chat, stream: true }).openStream();
    const crlf = 'data: {"choices":[{"token_ids":[1],"index":0}]}\r\n\r\n';
    expect(relay(open(), Buffer.from(crlf), "open")).toBe(
      'data: {"choices":[{"index":0}]}\r\n\r\n',
    );
    const lines = 'event: e\ndata: {"choices":[\ndata: {"index":0,"token_ids":[1]}]}\n\n';
    expect(relay(open(), Buffer.from(lines), "open")).toBe(
      'event: e\ndata: {"choices":[\ndata: {"index":0}]}\n\n',
    );
  });

  it("a 5 MB event", () => {
    const big = {
      choices: [
        {
          index: 0,
          delta: { content: "x".repeat(5_000_000) },
          token_ids: [1],
          finish_reason: "stop",
        },
      ],
    };
    const stream = plan(chatDialect, { ...chat, stream: true }).openStream();
    const seen = relay(stream, engineStream([big, "[DONE]"]), "eof", [65_536]);
    expect(seen).toHaveLength(
      5_000_000 +
        'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
          .length,
    );
  });
});

describe("how a passed-through stream ends", () => {
  const partial = engineStream([{ choices: [{ index: 0, delta: { content: "a" } }] }]);
  const open = () => plan(chatDialect, { ...chat, stream: true }).openStream();

  it.each(["reset", "eof"] as const)("%s without a finish fails, with not a byte added", (end) => {
    const stream = open();
    expect(relay(stream, partial, end)).toBe(partial.toString());
    expect([stream.outcome, stream.isAnswered]).toEqual(["failed", false]);
  });

  it("a finish reason inside text is no finish", () => {
    const stream = open();
    relay(
      stream,
      engineStream([
        {
          choices: [
            { index: 0, delta: { content: '"finish_reason":"stop"' }, finish_reason: null },
          ],
        },
      ]),
    );
    expect(stream.outcome).toBe("failed");
  });

  it("a failure of the sidecar's own is an error event", () => {
    const stream = open();
    const error = { status: 503, reason: "engine-unreachable", message: "no engine" };
    expect(stream.fail({ kind: "error", error }).toString()).toBe(
      'data: {"error":{"message":"no engine","type":"api_error","param":null,"code":"engine-unreachable"}}\n\n',
    );
    expect(stream.fail({ kind: "error", error })).toHaveLength(0);
    expect(stream.push(createSseDecoder().push(partial)[0] as never)).toHaveLength(0);
  });

  it("no keep-alive unless set, as strict clients choke on comments", () => {
    expect(open().keepAlive()).toHaveLength(0);
    const commented = plan(
      chatDialect,
      { ...chat, stream: true },
      { translation: { chatKeepAlive: "comment" } },
    );
    expect(commented.openStream().keepAlive().toString()).toBe(": keep-alive\n\n");
  });
});

describe("what goes to the engine", () => {
  it("keeps every byte but the members that change", () => {
    const body =
      '{ "seed": 12345678901234567890, "model":"m",\n"stream":true , "messages":[{"content":"\\u00e9","role":"user"}] }';
    expect(
      plan(chatDialect, body, {
        model: "served",
        sampling: { temperature: 1 },
      }).upstreamBody.toString(),
    ).toBe(
      '{ "seed": 12345678901234567890, "model":"served",\n"stream":true , "messages":[{"content":"\\u00e9","role":"user"}] ,"temperature":1,"return_token_ids":true,"logprobs":true,"top_logprobs":0,"stream_options":{"include_usage":true}}',
    );
  });

  it("keeps the harness's own logprobs settings", () => {
    const asked = plan(chatDialect, { ...chat, logprobs: true, top_logprobs: 5 });
    expect(JSON.parse(asked.upstreamBody.toString())).toMatchObject({
      logprobs: true,
      top_logprobs: 5,
    });
    expect(asked.clientAsked).toEqual({ logprobs: true, tokenIds: false, usage: false });
  });

  it("adds nothing and strips nothing when not capturing", async () => {
    const planned = plan(chatDialect, { ...chat, stream: true }, { capture: false, engine: noIds });
    expect(planned.upstreamBody.toString()).toBe(JSON.stringify({ ...chat, stream: true }));
    const odd = 'data: {"prompt_token_ids":[1]}\n\n';
    expect(relay(planned.openStream(), Buffer.from(odd), "open")).toBe(odd);
  });

  it.each(["", "oops", "[1]", '{"model":'])(
    "a body that is no object, %j, goes as it came",
    (body) => {
      const planned = plan(chatDialect, body);
      expect([planned.upstreamBody.toString(), planned.captured, planned.wantsStream]).toEqual([
        body,
        false,
        false,
      ]);
    },
  );

  it("an engine's error answer passes byte for byte", () => {
    const upstream = { status: 400, headers: { "x-a": "b" }, body: Buffer.from('{"error" : 1}') };
    expect(plan(chatDialect, chat).encodeEngineError(upstream)).toBe(upstream);
    expect(plan(completionsDialect, text).encodeEngineError(upstream)).toBe(upstream);
  });
});
