import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { JsonRecord } from "../../sidecar/dialects/json-value.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { refuseWebSocket } from "../../sidecar/dialects/responses/websocket-refusal.ts";
import { plan, testSettings, upstreamRequest } from "./run-dialect.ts";

function translate(body: object, translation: object = {}): JsonRecord {
  return upstreamRequest(plan(responsesDialect, body, { translation }));
}

function messages(...input: object[]): unknown {
  return translate({ input })["messages"];
}

function dropped(body: object): readonly string[] {
  return plan(responsesDialect, body).dropped;
}

const text = (role: string, ...texts: string[]) => ({
  type: "message",
  role,
  content: texts.map((each) => ({
    type: role === "assistant" ? "output_text" : "input_text",
    text: each,
  })),
});
const call = (call_id: string, more: object = {}) => ({
  type: "function_call",
  id: `fc_${call_id}`,
  call_id,
  name: "f",
  arguments: '{"x": 1}',
  ...more,
});
const chatCall = (id: string, name = "f", args = '{"x": 1}') => ({
  id,
  type: "function",
  function: { name, arguments: args },
});

describe("Responses request -> chat", () => {
  it("instructions lead as system, an input string is the user", () => {
    expect(translate({ instructions: "i", input: "hi" })["messages"]).toEqual([
      { role: "system", content: "i" },
      { role: "user", content: "hi" },
    ]);
  });

  it("messages in order; developer is system unless the template knows it", () => {
    const input = [
      text("developer", "a", "b"),
      text("user", "c"),
      text("user", "d", "e"),
      text("developer", "late"),
      { role: "user", content: "easy" },
    ];
    expect(messages(...input)).toEqual([
      { role: "system", content: "a\n\nb" },
      { role: "user", content: "c" },
      {
        role: "user",
        content: [
          { type: "text", text: "d" },
          { type: "text", text: "e" },
        ],
      },
      { role: "system", content: "late" },
      { role: "user", content: "easy" },
    ]);
    expect(translate({ input }, { developerRole: "developer" })["messages"]).toMatchObject([
      { role: "developer" },
      {},
      {},
      { role: "system" },
      {},
    ]);
  });

  it("images of the user", () => {
    expect(
      messages({
        role: "user",
        content: [
          { type: "input_text", text: "a" },
          { type: "input_image", image_url: "data:x", detail: "low" },
        ],
      }),
    ).toEqual([
      {
        role: "user",
        content: [
          { type: "text", text: "a" },
          { type: "image_url", image_url: { url: "data:x", detail: "low" } },
        ],
      },
    ]);
  });

  it("reasoning, text and consecutive calls are one assistant message", () => {
    expect(
      messages(
        { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "hm" }] },
        text("assistant", "I ", "will"),
        call("a"),
        call("b"),
        { type: "function_call_output", call_id: "a", output: "1" },
        {
          type: "function_call_output",
          call_id: "b",
          output: [
            { type: "input_text", text: "2" },
            { type: "input_text", text: "3" },
          ],
        },
        call("c"),
      ),
    ).toEqual([
      {
        role: "assistant",
        content: "I will",
        reasoning_content: "hm",
        tool_calls: [chatCall("a"), chatCall("b")],
      },
      { role: "tool", tool_call_id: "a", content: "1" },
      { role: "tool", tool_call_id: "b", content: "2\n\n3" },
      { role: "assistant", content: null, tool_calls: [chatCall("c")] },
    ]);
  });

  it("two assistant messages stay two, and reasoning belongs to the next", () => {
    expect(
      messages(
        text("assistant", "a"),
        text("assistant", "b"),
        { type: "reasoning", content: [{ text: "r" }] },
        text("assistant", "c"),
      ),
    ).toEqual([
      { role: "assistant", content: "a" },
      { role: "assistant", content: "b" },
      { role: "assistant", content: "c", reasoning_content: "r" },
    ]);
  });

  it("images of tool outputs follow the outputs", () => {
    expect(
      messages(
        call("a"),
        {
          type: "function_call_output",
          call_id: "a",
          output: [{ type: "input_image", image_url: "u" }],
        },
        { type: "function_call_output", call_id: "b", output: "2" },
        text("user", "x"),
      ),
    ).toEqual([
      { role: "assistant", content: null, tool_calls: [chatCall("a")] },
      { role: "tool", tool_call_id: "a", content: "" },
      { role: "tool", tool_call_id: "b", content: "2" },
      { role: "user", content: [{ type: "image_url", image_url: { url: "u" } }] },
      { role: "user", content: "x" },
    ]);
  });

  it("custom tool calls are calls with one input, namespaced ones get one name", () => {
    expect(
      messages(
        { type: "custom_tool_call", call_id: "a", name: "apply_patch", input: "*** é" },
        { type: "custom_tool_call_output", call_id: "a", output: "ok" },
        call("b", { namespace: "ns" }),
      ),
    ).toEqual([
      {
        role: "assistant",
        content: null,
        tool_calls: [chatCall("a", "apply_patch", '{"input":"*** é"}')],
      },
      { role: "tool", tool_call_id: "a", content: "ok" },
      { role: "assistant", content: null, tool_calls: [chatCall("b", "ns__f")] },
    ]);
  });

  it("unknown items are dropped and recorded, never a 400", () => {
    const input = [
      { type: "web_search_call", id: "x" },
      { type: "item_reference", id: "y" },
      {},
      { type: "reasoning", encrypted_content: "of another" },
    ];
    expect(messages(...input)).toEqual([]);
    expect(dropped({ input })).toEqual([
      "input[0] (web_search_call)",
      "input[1] (item_reference)",
      "input[2] (no item)",
      "input[3] (reasoning of another model)",
    ]);
  });

  it("tools: functions as they are, custom ones with one input, namespaces flattened, the rest dropped", () => {
    const tools = [
      {
        type: "function",
        name: "f",
        description: "d",
        strict: false,
        parameters: { type: "object" },
      },
      {
        type: "custom",
        name: "patch",
        format: { type: "grammar", syntax: "lark", definition: "start: X" },
      },
      {
        type: "namespace",
        name: "ns",
        tools: [{ type: "function", name: "g" }, { type: "web_search" }],
      },
      { type: "web_search", external_web_access: true },
      { type: "local_shell" },
      { type: "function", name: "f" },
    ];
    expect(translate({ input: "", tools })["tools"]).toEqual([
      {
        type: "function",
        function: { name: "f", description: "d", parameters: { type: "object" }, strict: false },
      },
      {
        type: "function",
        function: {
          name: "patch",
          parameters: {
            type: "object",
            properties: {
              input: {
                type: "string",
                description: "Text that follows this lark grammar:\nstart: X",
              },
            },
            required: ["input"],
          },
        },
      },
      {
        type: "function",
        function: { name: "ns__g", parameters: { type: "object", properties: {} } },
      },
    ]);
    expect(dropped({ input: "", tools })).toEqual([
      "tools[2].tools[1] (web_search)",
      "tools[3] (web_search)",
      "tools[4] (local_shell)",
      "tools[5] (a second f)",
    ]);
  });

  it("tool_choice and parallel_tool_calls, both left out when no tool is left", () => {
    const rest = { input: "", tool_choice: "auto", parallel_tool_calls: true };
    expect(translate({ ...rest, tools: [{ type: "function", name: "f" }] })).toMatchObject({
      tool_choice: "auto",
      parallel_tool_calls: true,
    });
    for (const tools of [[], [{ type: "web_search" }], undefined]) {
      const chat = translate({ ...rest, tools });
      expect(chat).not.toHaveProperty("tool_choice");
      expect(chat).not.toHaveProperty("parallel_tool_calls");
    }
    expect(
      translate({
        input: "",
        tools: [{ type: "custom", name: "f" }],
        tool_choice: { type: "custom", name: "f" },
      }),
    ).toMatchObject({ tool_choice: { type: "function", function: { name: "f" } } });
  });

  it("limits, sampling, format, effort", () => {
    const schema = { type: "json_schema", name: "n", strict: true, schema: { type: "object" } };
    expect(
      translate({
        input: "",
        max_output_tokens: 5,
        temperature: 0.5,
        top_p: 0.9,
        text: { format: schema, verbosity: "low" },
        reasoning: { effort: "low", summary: "auto" },
      }),
    ).toMatchObject({
      max_completion_tokens: 5,
      temperature: 0.5,
      top_p: 0.9,
      reasoning_effort: "low",
      response_format: {
        type: "json_schema",
        json_schema: { name: "n", strict: true, schema: { type: "object" } },
      },
    });
    expect(translate({ input: "", text: { format: { type: "json_object" } } })).toMatchObject({
      response_format: { type: "json_object" },
    });
    expect(translate({ input: "", text: { format: { type: "text" } } })).not.toHaveProperty(
      "response_format",
    );
  });

  it("store, include, prompt_cache_key and client_metadata are dropped and recorded", () => {
    expect(
      dropped({ input: "", store: false, include: [], prompt_cache_key: "k", client_metadata: {} }),
    ).toEqual(["store", "include", "prompt_cache_key", "client_metadata"]);
  });

  it("previous_response_id is the one thing refused: nothing is stored", () => {
    const planned = responsesDialect.planCall(
      Buffer.from('{"input":"a","previous_response_id":"resp_1"}'),
      testSettings(),
    );
    expect(planned).toMatchObject({ kind: "refused", reply: { status: 400 } });
    if (planned.kind === "refused")
      expect(JSON.parse(planned.reply.body.toString())).toMatchObject({
        error: { code: "unsupported_parameter" },
      });
    expect(
      responsesDialect.planCall(
        Buffer.from('{"input":"a","previous_response_id":null}'),
        testSettings(),
      ).kind,
    ).toBe("planned");
  });

  it.each(["", "oops", "[]"])("%j is refused", (body) => {
    expect(responsesDialect.planCall(Buffer.from(body), testSettings())).toMatchObject({
      kind: "refused",
      reply: { status: 400 },
    });
  });

  it("a WebSocket upgrade is answered with 426 and the connection closed", () => {
    const reply = refuseWebSocket();
    expect(reply).toMatchObject({ status: 426, headers: { connection: "close" } });
    expect(JSON.parse(reply.body.toString())).toMatchObject({
      error: { code: "websocket_not_supported" },
    });
  });

  it("is total: any JSON object gives a request", () => {
    const value = fc.letrec((tie) => ({
      any: fc.oneof(
        { depthSize: "small" },
        fc.constantFrom(
          "message",
          "user",
          "assistant",
          "function_call",
          "function_call_output",
          "reasoning",
          "namespace",
          "custom",
          1,
          null,
          true,
          "",
        ),
        fc.array(tie("any"), { maxLength: 4 }),
        tie("object"),
      ),
      object: fc.dictionary(
        fc.constantFrom(
          "input",
          "role",
          "content",
          "type",
          "text",
          "tools",
          "name",
          "output",
          "format",
          "tool_choice",
          "reasoning",
          "instructions",
          "arguments",
          "encrypted_content",
          "parameters",
        ),
        tie("any"),
        { maxKeys: 6 },
      ),
    })).object;
    fc.assert(
      fc.property(value, (body) => {
        expect(upstreamRequest(plan(responsesDialect, body as object))["return_token_ids"]).toBe(
          true,
        );
      }),
      { numRuns: 500 },
    );
  });
});
