import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { JsonRecord } from "../../sidecar/dialects/json-value.ts";
import {
  encodeCountTokens,
  planCountTokens,
} from "../../sidecar/dialects/messages/count-tokens.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { plan, testSettings, upstreamRequest } from "./run-dialect.ts";

function translate(body: object, translation: object = {}): JsonRecord {
  return upstreamRequest(plan(messagesDialect, body, { translation }));
}

function messages(...turns: object[]): unknown {
  return translate({ messages: turns })["messages"];
}

function dropped(body: object): readonly string[] {
  return plan(messagesDialect, body).dropped;
}

const user = (...content: object[]) => ({ role: "user", content });

describe("Anthropic Messages request -> chat", () => {
  it("system string, and blocks joined by an empty line, without cache_control", () => {
    const chat = (system: unknown) => translate({ system, messages: [] })["messages"];
    expect(chat("be kind")).toEqual([{ role: "system", content: "be kind" }]);
    const blocks = [
      { type: "text", text: "a", cache_control: { type: "ephemeral" } },
      { type: "text", text: "b" },
    ];
    expect(chat(blocks)).toEqual([{ role: "system", content: "a\n\nb" }]);
    expect(chat([])).toEqual([]);
  });

  it("Claude Code's billing block is dropped, as it differs from call to call", () => {
    const system = [
      { type: "text", text: "x-anthropic-billing-header: cc_version=2; cch=1;" },
      { type: "text", text: "a" },
    ];
    expect(translate({ system, messages: [] })["messages"]).toEqual([
      { role: "system", content: "a" },
    ]);
    expect(dropped({ system, messages: [] })).toEqual(["system[0] (billing header)"]);
  });

  it("a system message in between stays where it is, as user where the template needs that", () => {
    const turns = [
      { role: "user", content: "a" },
      { role: "system", content: "b" },
      { role: "assistant", content: "c" },
      { role: "user", content: "d" },
    ];
    expect(messages(...turns)).toEqual(turns);
    expect(
      translate({ messages: turns }, { midConversationSystemRole: "user" })["messages"],
    ).toMatchObject([{}, { role: "user", content: "b" }, {}, {}]);
  });

  it("user text: one is a string, several are parts", () => {
    expect(messages({ role: "user", content: "a" }, user({ type: "text", text: "a" }))).toEqual([
      { role: "user", content: "a" },
      { role: "user", content: "a" },
    ]);
    expect(messages(user({ type: "text", text: "a" }, { type: "text", text: "b" }))).toEqual([
      user({ type: "text", text: "a" }, { type: "text", text: "b" }),
    ]);
    expect(messages({ role: "user", content: "" })).toEqual([{ role: "user", content: "" }]);
  });

  it("user images, as data and as url", () => {
    const base64 = {
      type: "image",
      source: { type: "base64", media_type: "image/jpeg", data: "QUJD" },
    };
    const url = { type: "image", source: { type: "url", url: "https://x/y.png" } };
    expect(messages(user(base64, url))).toEqual([
      user(
        { type: "image_url", image_url: { url: "data:image/jpeg;base64,QUJD" } },
        { type: "image_url", image_url: { url: "https://x/y.png" } },
      ),
    ]);
  });

  it("tool results come before the text of their turn, images of results after them", () => {
    const image = { type: "image", source: { type: "url", url: "u" } };
    expect(
      messages(
        user(
          { type: "text", text: "and now" },
          { type: "tool_result", tool_use_id: "a", content: "r" },
          {
            type: "tool_result",
            tool_use_id: "b",
            content: [{ type: "text", text: "x" }, image, { type: "text", text: "y" }],
          },
          { type: "tool_result", tool_use_id: "c" },
        ),
      ),
    ).toEqual([
      { role: "tool", tool_call_id: "a", content: "r" },
      { role: "tool", tool_call_id: "b", content: "x\n\ny" },
      { role: "tool", tool_call_id: "c", content: "" },
      user({ type: "image_url", image_url: { url: "u" } }, { type: "text", text: "and now" }),
    ]);
  });

  it("an error of a tool is kept as a prefix", () => {
    expect(
      messages(
        user({ type: "tool_result", tool_use_id: "a", content: "no such file", is_error: true }),
      ),
    ).toEqual([{ role: "tool", tool_call_id: "a", content: "Error: no such file" }]);
  });

  it("an assistant turn is one message: text or null, calls, reasoning; redacted thinking goes", () => {
    const turn = {
      role: "assistant",
      content: [
        { type: "thinking", thinking: "hm", signature: "s" },
        { type: "redacted_thinking", data: "x" },
        { type: "text", text: "I will" },
        { type: "tool_use", id: "a", name: "f", input: { b: 1, a: [2] } },
      ],
    };
    expect(messages(turn)).toEqual([
      {
        role: "assistant",
        content: "I will",
        reasoning_content: "hm",
        tool_calls: [
          { id: "a", type: "function", function: { name: "f", arguments: '{"b":1,"a":[2]}' } },
        ],
      },
    ]);
    expect(dropped({ messages: [turn] })).toEqual(["messages[0].content[1] (redacted_thinking)"]);
    expect(
      messages({
        role: "assistant",
        content: [{ type: "tool_use", id: "a", name: "f", input: {} }],
      }),
    ).toMatchObject([{ content: null }]);
  });

  it("tool inputs keep key order and number spelling, without the whitespace between", () => {
    const body =
      '{"messages":[{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"a","name":"f","input":{ "10": 1.0, "2" : 12345678901234567890, "s": "a  b\\u00e9" }}]}]}';
    const planned = plan(messagesDialect, body);
    const call = JSON.parse(planned.upstreamBody.toString()) as {
      messages: { tool_calls: { function: { arguments: string } }[] }[];
    };
    expect(call.messages[0]?.tool_calls[0]?.function.arguments).toBe(
      '{"10":1.0,"2":12345678901234567890,"s":"a  b\\u00e9"}',
    );
  });

  it("tools with a schema are functions; server tools are dropped and recorded, never a 400", () => {
    const tools = [
      { name: "f", description: "d", input_schema: { type: "object" }, cache_control: {} },
      { type: "web_search_20250305", name: "web_search" },
      3,
    ];
    expect(translate({ messages: [], tools })["tools"]).toEqual([
      {
        type: "function",
        function: { name: "f", description: "d", parameters: { type: "object" } },
      },
    ]);
    expect(dropped({ messages: [], tools })).toEqual([
      "tools[1] (web_search_20250305)",
      "tools[2] (no tool)",
    ]);
  });

  it.each<[object, object]>([
    [{ type: "auto" }, { tool_choice: "auto" }],
    [{ type: "any" }, { tool_choice: "required" }],
    [{ type: "none" }, { tool_choice: "none" }],
    [{ type: "tool", name: "f" }, { tool_choice: { type: "function", function: { name: "f" } } }],
    [
      { type: "auto", disable_parallel_tool_use: true },
      { tool_choice: "auto", parallel_tool_calls: false },
    ],
  ])("tool_choice %j", (choice, expected) => {
    const tools = [{ name: "f", input_schema: {} }];
    expect(translate({ messages: [], tools, tool_choice: choice })).toMatchObject(expected);
    expect(translate({ messages: [], tool_choice: choice })).not.toHaveProperty("tool_choice");
  });

  it("limits and sampling", () => {
    const body = {
      messages: [],
      max_tokens: 7,
      stop_sequences: ["a"],
      temperature: 0.5,
      top_p: 0.9,
      top_k: 4,
    };
    expect(translate(body)).toMatchObject({
      max_tokens: 7,
      stop: ["a"],
      temperature: 0.5,
      top_p: 0.9,
      top_k: 4,
    });
    expect(translate(body, { maxTokensMember: "max_completion_tokens" })).toMatchObject({
      max_completion_tokens: 7,
    });
    expect(translate({ messages: [], stop_sequences: [] })).not.toHaveProperty("stop");
  });

  it("thinking and effort go as configured, by default nowhere and recorded", () => {
    const body = {
      messages: [],
      thinking: { type: "adaptive" },
      output_config: { effort: "high" },
    };
    expect(Object.keys(translate(body))).toEqual([
      "messages",
      "return_token_ids",
      "logprobs",
      "top_logprobs",
    ]);
    expect(dropped(body)).toEqual(["thinking", "output_config.effort"]);
    expect(translate(body, { reasoningMember: "enable-thinking" })).toMatchObject({
      chat_template_kwargs: { enable_thinking: true },
    });
    expect(translate(body, { reasoningMember: "reasoning-effort" })).toMatchObject({
      reasoning_effort: "high",
    });
  });

  it("a schema for the output becomes a response format", () => {
    const format = { type: "json_schema", schema: { type: "object" } };
    expect(translate({ messages: [], output_config: { format } })).toMatchObject({
      response_format: { type: "json_schema", json_schema: { schema: { type: "object" } } },
    });
  });

  it("metadata, context_management and what nobody knows is dropped and recorded", () => {
    const body = {
      messages: [user({ type: "mystery" }), { role: "narrator" }],
      metadata: {},
      context_management: {},
      mcp_servers: [],
    };
    expect(dropped(body)).toEqual([
      "metadata",
      "context_management",
      "mcp_servers",
      "messages[0].content[0] (mystery)",
      'messages[1] (role "narrator")',
    ]);
  });

  it("a trailing assistant text is gone on from", () => {
    expect(
      translate({
        messages: [
          { role: "user", content: "a" },
          { role: "assistant", content: "{" },
        ],
      }),
    ).toMatchObject({ add_generation_prompt: false, continue_final_message: true });
  });

  it("always asks for ids and logprobs, for usage when streaming, and sends what is served", () => {
    const body = { model: "claude", messages: [], stream: true };
    expect(translate(body)).toEqual({
      model: "claude",
      messages: [],
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
      logprobs: true,
      top_logprobs: 0,
    });
    const planned = plan(messagesDialect, body, {
      model: "served",
      sampling: { temperature: 1, max_tokens: 5 },
      engine: { kind: "sglang", streamsIds: false },
    });
    expect(upstreamRequest(planned)).toEqual({
      model: "served",
      messages: [],
      temperature: 1,
      max_tokens: 5,
      return_token_ids: true,
      return_prompt_token_ids: true,
      return_meta_info: true,
      logprobs: true,
      top_logprobs: 0,
    });
    expect([
      planned.model,
      planned.wantsStream,
      planned.upstreamStreams,
      planned.upstreamPath,
    ]).toEqual(["claude", true, false, "/v1/chat/completions"]);
  });

  it.each(["", "oops", "[]", "3", "null"])("%j is refused with Anthropic's error", (body) => {
    const planned = messagesDialect.planCall(Buffer.from(body), testSettings());
    expect(planned).toMatchObject({ kind: "refused", reply: { status: 400 } });
    if (planned.kind === "refused") {
      expect(JSON.parse(planned.reply.body.toString())).toMatchObject({
        type: "error",
        error: { type: "invalid_request_error" },
      });
    }
  });

  it("is total: any JSON object gives a request", () => {
    const value = fc.letrec((tie) => ({
      any: fc.oneof(
        { depthSize: "small" },
        fc.constantFrom("text", "user", "assistant", "tool_use", "tool_result", 1, null, true, ""),
        fc.array(tie("any"), { maxLength: 4 }),
        tie("object"),
      ),
      object: fc.dictionary(
        fc.constantFrom(
          "messages",
          "role",
          "content",
          "type",
          "text",
          "tools",
          "system",
          "input",
          "source",
          "tool_choice",
          "thinking",
          "output_config",
          "stop_sequences",
          "name",
          "input_schema",
        ),
        tie("any"),
        { maxKeys: 6 },
      ),
    })).object;
    fc.assert(
      fc.property(value, (body) => {
        expect(upstreamRequest(plan(messagesDialect, body as object))["return_token_ids"]).toBe(
          true,
        );
      }),
      { numRuns: 500 },
    );
  });
});

describe("count_tokens", () => {
  const body = Buffer.from(
    JSON.stringify({
      model: "c",
      system: "s",
      messages: [{ role: "user", content: "a" }],
      tools: [{ name: "f", input_schema: {} }],
      max_tokens: 3,
    }),
  );

  it("asks the engine's tokenizer with the same prompt", () => {
    const planned = planCountTokens(body, testSettings());
    expect(planned).toMatchObject({ upstreamPath: "/tokenize" });
    if ("upstreamBody" in planned) {
      expect(JSON.parse(planned.upstreamBody.toString())).toEqual({
        model: "c",
        messages: [
          { role: "system", content: "s" },
          { role: "user", content: "a" },
        ],
        tools: [{ type: "function", function: { name: "f", parameters: {} } }],
        add_generation_prompt: true,
      });
    }
  });

  it.each([
    ['{"count":12,"tokens":[1]}', 200, { input_tokens: 12 }],
    ['{"tokens":[1,2]}', 200, { input_tokens: 2 }],
    ["oops", 502, { type: "error" }],
  ])("%s", (upstream, status, expected) => {
    const reply = encodeCountTokens({ status: 200, headers: {}, body: Buffer.from(upstream) });
    expect(reply.status).toBe(status);
    expect(JSON.parse(reply.body.toString())).toMatchObject(expected);
  });
});
