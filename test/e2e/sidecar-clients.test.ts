import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { toolResultCount, vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
});
beforeEach(() => {
  engine.setScript(vllmScript());
  proxied.calls.length = 0;
});
afterAll(async () => {
  await proxied.close();
  await engine.close();
});

const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } } },
  },
} as const;

const callsTool = vllmScript({
  answer: (request) =>
    toolResultCount(request) > 0
      ? { content: "It rains in Bergen." }
      : {
          content: "Let me look.",
          toolCalls: [{ id: "call_1", name: "weather", arguments: '{"city": "Bergen"}' }],
        },
});

/** The engine numbers its answers; everything else must be equal. */
function withoutId<T extends object>(value: T): Omit<T, "id" | "_request_id"> {
  const { id: _id, _request_id, ...rest } = value as T & { id?: unknown; _request_id?: unknown };
  return rest;
}

function openai(baseUrl: string, maxRetries = 0): OpenAI {
  return new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "sk-x", maxRetries });
}

const chat = { model: "toy", messages: [{ role: "user" as const, content: "hello there" }] };

describe("openai-node through the sidecar gets what it gets directly", () => {
  const both = async <T>(ask: (client: OpenAI) => Promise<T>): Promise<[T, T]> => [
    await ask(openai(engine.url)),
    await ask(openai(proxied.url)),
  ];

  it("not streamed", async () => {
    const [direct, through] = await both((client) => client.chat.completions.create(chat));
    expect(withoutId(through)).toEqual(withoutId(direct));
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true, streamMode: "none", dialect: "chat" });
    expect(call?.choices[0]).toMatchObject({ complete: true, finishReason: "stop" });
    expect(call?.choices[0]?.responseIds?.length).toBe(call?.usage?.completionTokens);
    expect(call?.promptIds?.length).toBe(call?.usage?.promptTokens);
  });

  it.each([false, true])("streamed, include_usage %s", async (include_usage) => {
    const ask = async (client: OpenAI) => {
      const chunks: object[] = [];
      const stream = await client.chat.completions.create({
        ...chat,
        stream: true,
        ...(include_usage ? { stream_options: { include_usage } } : {}),
      });
      for await (const chunk of stream) chunks.push(withoutId(chunk));
      return chunks;
    };
    const [direct, through] = await both(ask);
    expect(through).toEqual(direct);
    expect(through.length).toBeGreaterThan(3);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: true, streamMode: "relayed" });
    expect(call?.choices[0]?.complete).toBe(true);
  });

  it("with logprobs asked for, they stay", async () => {
    const ask = (client: OpenAI) =>
      client.chat.completions.create({ ...chat, logprobs: true, top_logprobs: 0 });
    const [direct, through] = await both(ask);
    expect(through.choices[0]?.logprobs?.content?.length).toBeGreaterThan(0);
    expect(withoutId(through)).toEqual(withoutId(direct));
  });

  it.each([true, false])("tool calls over two turns in a loop, stream %s", async (stream) => {
    engine.setScript(callsTool);
    const ask = async (client: OpenAI) => {
      const messages: OpenAI.ChatCompletionMessageParam[] = [...chat.messages];
      for (let turn = 0; turn < 2; turn += 1) {
        const request = { model: "toy", messages, tools: [weather] };
        const answer = stream
          ? await client.chat.completions.stream(request).finalChatCompletion()
          : await client.chat.completions.create(request);
        const message = answer.choices[0]?.message;
        if (message === undefined) throw new Error("no choice");
        const { role, content, tool_calls } = message;
        messages.push({ role, content, ...(tool_calls === undefined ? {} : { tool_calls }) });
        for (const call of tool_calls ?? []) {
          messages.push({ role: "tool", tool_call_id: call.id, content: "rain" });
        }
      }
      return messages;
    };
    const [direct, through] = await both(ask);
    expect(through).toEqual(direct);
    expect(through.at(-1)).toMatchObject({ content: "It rains in Bergen." });
    const calls = await proxied.recorded(2);
    expect(calls.map((call) => call.choices[0]?.finishReason)).toEqual(["tool_calls", "stop"]);
    expect(calls.every((call) => call.choices[0]?.complete === true)).toBe(true);
  });

  it.each([true, false])("n = 3 and text completions, stream %s", async (stream) => {
    const [direct, through] = await both(async (client) => {
      const asked = { model: "toy", n: 3, stream };
      const answers = [
        await client.chat.completions.create({ ...asked, messages: chat.messages }),
        await client.completions.create({ ...asked, prompt: "once upon" }),
      ];
      const parts: object[] = [];
      for (const answer of answers) {
        if (!(Symbol.asyncIterator in answer)) parts.push(withoutId(answer));
        else for await (const chunk of answer) parts.push(withoutId(chunk));
      }
      return parts;
    });
    expect(through).toEqual(direct);
    const calls = await proxied.recorded(2);
    expect(calls.map(({ dialect, delivered }) => [dialect, delivered])).toEqual([
      ["chat", true],
      ["completions", true],
    ]);
    expect(calls.flatMap(({ choices }) => choices.map(({ complete }) => complete))).toEqual(
      Array(6).fill(true),
    );
  });

  it("an engine's error, status and body", async () => {
    const body = { error: { message: "too long", type: "invalid_request_error", code: "x" } };
    engine.setScript(vllmScript({ error: { status: 400, body } }));
    const ask = async (client: OpenAI) => {
      const error = await client.chat.completions.create(chat).catch((cause: unknown) => cause);
      const { status, message, code, type } = error as InstanceType<typeof OpenAI.APIError>;
      return { status, message, code, type, name: (error as Error).constructor.name };
    };
    const [direct, through] = await both(ask);
    expect(through).toEqual(direct);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ httpStatus: 400, errorReason: "engine-status-400", choices: [] });
  });

  it("an abort in mid-stream: the same so far, and what was sampled is kept", async () => {
    const held = new Promise<never>(() => {});
    engine.setScript(vllmScript({ betweenEvents: (index) => (index === 3 ? held : undefined) }));
    const [direct, through] = await both(async (client) => {
      const gone = new AbortController();
      const options = { signal: gone.signal };
      const stream = await client.chat.completions.create({ ...chat, stream: true }, options);
      const seen: string[] = [];
      for await (const chunk of stream) {
        seen.push(chunk.choices[0]?.delta.content ?? "");
        if (seen.length === 3) gone.abort();
      }
      expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
      return seen;
    });
    expect(through).toEqual(direct);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
    expect(call?.choices[0]).toMatchObject({ complete: false, incompleteReason: "finish-missing" });
    expect(call?.choices[0]?.responseIds?.length).toBe(2);
  });

  it("a reset in mid-stream is a failure for the client too", async () => {
    engine.setScript(() => [
      { head: 200, headers: { "content-type": "text/event-stream" } },
      {
        write:
          'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
      },
      { reset: true },
    ]);
    const ask = async (client: OpenAI) => {
      const seen: unknown[] = [];
      try {
        const stream = await client.chat.completions.create({ ...chat, stream: true });
        for await (const chunk of stream) seen.push(chunk);
        return { seen, failed: false };
      } catch {
        return { seen, failed: true };
      }
    };
    const [direct, through] = await both(ask);
    expect(direct.failed).toBe(true);
    expect(through).toEqual(direct);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "engine-reset" });
  });

  it("the model list", async () => {
    const [direct, through] = await both(async (client) => (await client.models.list()).data);
    expect(through).toEqual(direct);
  });
});

// What it gets through the sidecar is compared in `sidecar-translated-clients.test.ts`.
describe("@anthropic-ai/sdk", () => {
  const request = {
    model: "toy",
    max_tokens: 100,
    messages: [{ role: "user" as const, content: "hello there" }],
  };
  const client = () => new Anthropic({ baseURL: proxied.url, apiKey: "sk-x", maxRetries: 0 });

  it("counts tokens with the engine's tokenizer", async () => {
    const { input_tokens } = await client().messages.countTokens({
      model: "toy",
      messages: request.messages,
    });
    expect(input_tokens).toBeGreaterThan(0);
  });

  it("gets a reset as an error, not as an end", async () => {
    engine.setScript(() => [
      { head: 200, headers: { "content-type": "text/event-stream" } },
      {
        write:
          'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
      },
      { reset: true },
    ]);
    await expect(client().messages.stream(request).finalMessage()).rejects.toThrow();
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "engine-reset" });
  });
});

describe("Vercel AI SDK", () => {
  const tools = {
    weather: tool({
      inputSchema: jsonSchema<{ city: string }>({
        type: "object",
        properties: { city: { type: "string" } },
      }),
      execute: async ({ city }) => `rain in ${city}`,
    }),
  };
  const compatible = (baseUrl: string) =>
    createOpenAICompatible({ name: "engine", baseURL: `${baseUrl}/v1`, apiKey: "sk-x" })("toy");

  it("openai-compatible: a tool loop, generated and streamed, equals direct", async () => {
    engine.setScript(callsTool);
    const outcomes: unknown[] = [];
    for (const url of [engine.url, proxied.url]) {
      const options = {
        model: compatible(url),
        prompt: "hello there",
        tools,
        stopWhen: stepCountIs(3),
        maxRetries: 0,
      };
      const whole = await generateText(options);
      const streamed = streamText(options);
      outcomes.push({
        text: [whole.text, await streamed.text],
        finish: [whole.finishReason, await streamed.finishReason],
        steps: [whole.steps.length, (await streamed.steps).length],
        calls: whole.steps.map((step) => step.toolCalls.map((call) => [call.toolName, call.input])),
      });
    }
    expect(outcomes[1]).toEqual(outcomes[0]);
    expect(outcomes[1]).toMatchObject({ steps: [2, 2] });
    const calls = await proxied.recorded(4);
    expect(calls.every((call) => call.delivered && call.choices[0]?.complete)).toBe(true);
  });
});
