import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { describe, expect, it } from "vitest";
import { chatDialect } from "../../sidecar/dialects/chat/chat-dialect.ts";
import type { EngineProfile } from "../../sidecar/dialects/dialect.ts";
import { messagesDialect } from "../../sidecar/dialects/messages/messages-dialect.ts";
import { responsesDialect } from "../../sidecar/dialects/responses/responses-dialect.ts";
import { codecFetch } from "./codec-fetch.ts";
import { type EngineAnswer, toolResultCount, vllmScript } from "./vllm-script.ts";

/** First a call with reasoning and text, after the tool's result the answer. */
const script = vllmScript({
  answer: (request): EngineAnswer =>
    toolResultCount(request) === 0
      ? {
          reasoning: "I should add",
          content: "Let me see.",
          toolCalls: [{ id: "call_1", name: "add", arguments: '{"a": 19, "b": 23}' }],
        }
      : { content: "It is 42 😀" },
});

const engines: [string, EngineProfile][] = [
  ["an engine that streams ids", { kind: "vllm", streamsIds: true }],
  ["an engine that does not", { kind: "sglang", streamsIds: false }],
];
const schema = {
  type: "object" as const,
  properties: { a: { type: "number" }, b: { type: "number" } },
};

describe.each(engines)("SDKs, %s", (_name, engine) => {
  const open = (dialect: Parameters<typeof codecFetch>[0]) =>
    codecFetch(dialect, script, { engine });

  it.each([true, false])(
    "@anthropic-ai/sdk, streaming %s: thinking, text, tool, then the answer",
    async (isStreaming) => {
      const { fetch, engineRequests } = open(messagesDialect);
      const client = new Anthropic({ apiKey: "k", baseURL: "http://x", fetch, maxRetries: 0 });
      const tools = [{ name: "add", input_schema: schema }];
      const first = {
        model: "m",
        max_tokens: 99,
        tools,
        messages: [{ role: "user" as const, content: "19+23?" }],
      };
      const send = (request: Anthropic.MessageCreateParamsNonStreaming) =>
        isStreaming
          ? client.messages.stream(request).finalMessage()
          : client.messages.create(request);
      const message = await send(first);
      expect(message.content).toMatchObject([
        { type: "thinking", thinking: "I should add" },
        { type: "text", text: "Let me see." },
        { type: "tool_use", id: "call_1", name: "add", input: { a: 19, b: 23 } },
      ]);
      expect(message.stop_reason).toBe("tool_use");
      expect(message.usage.output_tokens).toBeGreaterThan(5);
      const result = { type: "tool_result" as const, tool_use_id: "call_1", content: "42" };
      const answer = await send({
        ...first,
        messages: [
          ...first.messages,
          { role: "assistant", content: message.content },
          { role: "user", content: [result] },
        ],
      });
      expect(answer).toMatchObject({
        stop_reason: "end_turn",
        content: [{ type: "text", text: "It is 42 😀" }],
      });
      expect(engineRequests[1]?.["messages"]).toMatchObject([
        { role: "user", content: "19+23?" },
        {
          role: "assistant",
          reasoning_content: "I should add",
          content: "Let me see.",
          tool_calls: [{ id: "call_1" }],
        },
        { role: "tool", tool_call_id: "call_1", content: "42" },
      ]);
    },
  );

  it.each([true, false])(
    "openai responses, streaming %s: reasoning, text, tool, then the answer",
    async (isStreaming) => {
      const { fetch, engineRequests } = open(responsesDialect);
      const client = new OpenAI({ apiKey: "k", baseURL: "http://x/v1", fetch, maxRetries: 0 });
      const tools = [{ type: "function" as const, name: "add", parameters: schema, strict: false }];
      const send = (input: OpenAI.Responses.ResponseInput) =>
        isStreaming
          ? client.responses.stream({ model: "m", input, tools }).finalResponse()
          : client.responses.create({ model: "m", input, tools });
      const first = await send([{ role: "user", content: "19+23?" }]);
      expect(first.output).toMatchObject([
        { type: "reasoning", content: [{ text: "I should add" }] },
        { type: "message", content: [{ text: "Let me see." }] },
        { type: "function_call", call_id: "call_1", name: "add", arguments: '{"a": 19, "b": 23}' },
      ]);
      const output = { type: "function_call_output" as const, call_id: "call_1", output: "42" };
      const answer = await send([
        { role: "user", content: "19+23?" },
        ...(first.output as OpenAI.Responses.ResponseInput),
        output,
      ]);
      expect([answer.status, answer.output_text]).toEqual(["completed", "It is 42 😀"]);
      expect(engineRequests[1]?.["messages"]).toMatchObject([
        { role: "user" },
        {
          role: "assistant",
          reasoning_content: "I should add",
          content: "Let me see.",
          tool_calls: [{ id: "call_1" }],
        },
        { role: "tool", tool_call_id: "call_1", content: "42" },
      ]);
    },
  );

  it("openai chat completions, streaming and not", async () => {
    const { fetch } = open(chatDialect);
    const client = new OpenAI({ apiKey: "k", baseURL: "http://x/v1", fetch, maxRetries: 0 });
    const request = { model: "m", messages: [{ role: "user" as const, content: "19+23?" }] };
    const whole = await client.chat.completions.create(request);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    for (const { choices } of [whole, streamed]) {
      expect(choices[0]).toMatchObject({
        finish_reason: "tool_calls",
        message: {
          content: "Let me see.",
          tool_calls: [
            { id: "call_1", function: { name: "add", arguments: '{"a": 19, "b": 23}' } },
          ],
        },
      });
      expect(choices[0]?.logprobs).toBeNull();
    }
  });

  it.each([["anthropic"], ["openai-compatible"]])(
    "Vercel AI SDK with its %s provider: a whole tool loop",
    async (provider) => {
      const { fetch } = open(provider === "anthropic" ? messagesDialect : chatDialect);
      const model =
        provider === "anthropic"
          ? createAnthropic({ apiKey: "k", baseURL: "http://x/v1", fetch })("m")
          : createOpenAICompatible({ name: "x", baseURL: "http://x/v1", fetch })("m");
      const add = tool({
        inputSchema: jsonSchema<{ a: number; b: number }>(schema),
        execute: ({ a, b }) => a + b,
      });
      const request = {
        model,
        prompt: "19+23?",
        tools: { add },
        stopWhen: stepCountIs(3),
        maxOutputTokens: 100,
        maxRetries: 0,
      };
      const whole = await generateText(request);
      const streamed = streamText(request);
      expect([whole.text, await streamed.text]).toEqual(["It is 42 😀", "It is 42 😀"]);
      expect([whole.finishReason, await streamed.finishReason]).toEqual(["stop", "stop"]);
      expect((await streamed.steps)[0]?.toolCalls).toMatchObject([
        { toolName: "add", input: { a: 19, b: 23 } },
      ]);
    },
  );
});

describe("SDKs and broken streams", () => {
  const cutOff = () => [
    { head: 200 },
    { write: 'data: {"choices":[{"index":0,"delta":{"content":"par"}}]}\n\n' },
    { end: true as const },
  ];

  it("@anthropic-ai/sdk throws on a stream without an end", async () => {
    const { fetch } = codecFetch(messagesDialect, cutOff);
    const client = new Anthropic({ apiKey: "k", baseURL: "http://x", fetch, maxRetries: 0 });
    const stream = client.messages.stream({ model: "m", max_tokens: 9, messages: [] });
    await expect(stream.finalMessage()).rejects.toThrow(/without a finish reason/);
  });

  it("openai's response stream reports the failure", async () => {
    const { fetch } = codecFetch(responsesDialect, cutOff);
    const client = new OpenAI({ apiKey: "k", baseURL: "http://x/v1", fetch, maxRetries: 0 });
    const response = await client.responses.stream({ model: "m", input: "a" }).finalResponse();
    expect([response.status, response.error?.message]).toEqual([
      "failed",
      "the engine ended its stream without a finish reason",
    ]);
  });

  it("refusals are errors of the SDK's own kind", async () => {
    const { fetch } = codecFetch(responsesDialect, cutOff);
    const client = new OpenAI({ apiKey: "k", baseURL: "http://x/v1", fetch, maxRetries: 0 });
    const request = client.responses.create({
      model: "m",
      input: "a",
      previous_response_id: "resp_1",
    });
    await expect(request).rejects.toMatchObject({ status: 400, code: "unsupported_parameter" });
  });
});
