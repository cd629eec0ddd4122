import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { ownDialectScript, ownToolResultCount } from "../conformance/own-dialect-script.ts";
import { type ScriptedEngine, startScriptedEngine } from "../conformance/scripted-engine.ts";
import { type EngineAnswer, toolResultCount, vllmScript } from "../conformance/vllm-script.ts";
import { startTestSidecar, type TestSidecar } from "./sidecar-support.ts";

/** What the sidecar asks, in chat completions. */
let engine: ScriptedEngine;
let proxied: TestSidecar;
/** What the clients ask directly: the same answers in their own API. */
let own: ScriptedEngine;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
  own = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url]);
});
beforeEach(() => {
  proxied.calls.length = 0;
});
afterAll(async () => {
  await proxied.close();
  await engine.close();
  await own.close();
});

const calls: EngineAnswer = {
  reasoning: "The user asks for rain, so I look.",
  content: "Let me look 😀.",
  toolCalls: [
    { id: "call_1", name: "weather", arguments: '{"city": "Bergen", "days": [1, 2.5]}' },
    { id: "call_2", name: "weather", arguments: '{"city": "Tromsø"}' },
  ],
};
const says: EngineAnswer = { content: "It rains in Bergen." };

interface Outcome {
  readonly through: unknown;
  readonly direct: unknown;
}

/**
 * Asks through the sidecar, then directly; the service says as many tokens as the engine counted.
 * `ask` may take several turns: the answer depends on the results of tools in its request.
 */
async function both(ask: (baseUrl: string) => Promise<unknown>): Promise<Outcome> {
  const answer = (results: number) => (results > 0 ? says : calls);
  engine.setScript(vllmScript({ answer: (request) => answer(toolResultCount(request)) }));
  const through = await ask(proxied.url);
  const records = [...proxied.calls];
  let turn = 0;
  own.setScript((request) => {
    const { usage } = records[turn] ?? {};
    turn += 1;
    if (usage == null) throw new Error("the sidecar has recorded no such turn");
    return ownDialectScript({ answer: (each) => answer(ownToolResultCount(each)), usage })(request);
  });
  return { through, direct: await ask(own.url) };
}

/** Ids that a service makes up, signatures and times are each one's own. */
function comparable(value: unknown): unknown {
  const text = JSON.stringify(value, (key, member: unknown) =>
    ["created_at", "completed_at", "signature", "_request_id", "parsed"].includes(key) ||
    key.startsWith("x_")
      ? undefined
      : member,
  );
  return JSON.parse(text.replaceAll(/"(msg|resp|rs|fc)_\w+"/g, '"$1"')) as unknown;
}

function expectSame({ through, direct }: Outcome): void {
  expect(comparable(through)).toEqual(comparable(direct));
}

async function expectRecords(count: number): Promise<void> {
  const records = await proxied.recorded(count);
  expect(records.map(({ delivered }) => delivered)).toEqual(Array(count).fill(true));
  expect(records.map(({ choices }) => choices[0]?.complete)).toEqual(Array(count).fill(true));
}

const parameters = { type: "object" as const, properties: { city: { type: "string" } } };

describe("@anthropic-ai/sdk through the sidecar gets what a service of that API says", () => {
  const request = {
    model: "toy",
    max_tokens: 100,
    messages: [{ role: "user" as const, content: "hello there" }],
    tools: [{ name: "weather", input_schema: parameters }],
  };
  const client = (baseURL: string) => new Anthropic({ baseURL, apiKey: "sk-x", maxRetries: 0 });

  it("not streamed", async () => {
    expectSame(await both((url) => client(url).messages.create(request)));
    await expectRecords(1);
  });

  it("streamed: every event, in its order", async () => {
    const outcome = await both(async (url) => {
      const events: unknown[] = [];
      for await (const event of await client(url).messages.create({ ...request, stream: true })) {
        const copy = structuredClone(event);
        // The engine counts the prompt at the end only; `message_delta` has the count.
        if (copy.type === "message_start") copy.message.usage.input_tokens = 0;
        events.push(copy);
      }
      return events;
    });
    expect((outcome.through as unknown[]).length).toBeGreaterThan(20);
    expectSame(outcome);
    await expectRecords(1);
  });

  it.each([true, false])("tools over two turns, stream %s", async (stream) => {
    const outcome = await both(async (url) => {
      const messages: Anthropic.MessageParam[] = [...request.messages];
      for (let turn = 0; turn < 2; turn += 1) {
        const turnRequest = { ...request, messages };
        const { content } = stream
          ? await client(url).messages.stream(turnRequest).finalMessage()
          : await client(url).messages.create(turnRequest);
        messages.push({ role: "assistant", content });
        const results = content.flatMap((block) =>
          block.type === "tool_use"
            ? [{ type: "tool_result" as const, tool_use_id: block.id, content: "rain" }]
            : [],
        );
        if (results.length > 0) messages.push({ role: "user", content: results });
      }
      return messages;
    });
    expectSame(outcome);
    expect((outcome.through as unknown[]).length).toBe(4);
    await expectRecords(2);
  });

  it.each([
    [400, "invalid_request_error"],
    [401, "authentication_error"],
    [403, "permission_error"],
    [404, "not_found_error"],
    [413, "request_too_large"],
    [429, "rate_limit_error"],
    [500, "api_error"],
    [529, "overloaded_error"],
  ])("an error of status %i", async (status, type) => {
    engine.setScript(vllmScript({ error: { status, body: { error: { message: "no" } } } }));
    const body = { type: "error", error: { type, message: "no" } };
    const usage = { promptTokens: 0, completionTokens: 0 };
    own.setScript(ownDialectScript({ answer: () => says, usage, error: { status, body } }));
    const ask = async (url: string) => {
      const error = await client(url)
        .messages.create(request)
        .catch((cause: unknown) => cause);
      const { status: code, type: kind } = error as InstanceType<typeof Anthropic.APIError>;
      return { code, kind, name: (error as Error).constructor.name };
    };
    const through = await ask(proxied.url);
    expect(through).toEqual(await ask(own.url));
    expect(through.code).toBe(status);
  });

  it("an abort in mid-stream: the same so far, the same error, the engine's request ended", async () => {
    const usage = { promptTokens: 1, completionTokens: 1 };
    const held = new Promise<never>(() => {});
    engine.setScript(
      vllmScript({
        answer: () => says,
        betweenEvents: (index) => (index === 3 ? held : undefined),
      }),
    );
    // There, message_start, ping and the block's start come before the two pieces.
    own.setScript(
      ownDialectScript({
        answer: () => says,
        usage,
        betweenEvents: (index) => (index === 5 ? held : undefined),
      }),
    );
    const ask = async (url: string) => {
      const stream = client(url).messages.stream(request);
      let seen = "";
      stream.on("text", (text) => {
        seen += text;
        if (seen.length > 4) stream.abort();
      });
      const error = await stream.finalMessage().catch((cause: unknown) => cause);
      return { seen, name: (error as Error).constructor.name };
    };
    const through = await ask(proxied.url);
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
    expect(through).toEqual(await ask(own.url));
    expect(through.seen).toBe("It rains");
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
    expect(call?.choices[0]?.responseIds?.length).toBe(2);
  });
});

describe("openai-node's Responses through the sidecar are what a service of that API says", () => {
  const request = {
    model: "toy",
    input: "hello there",
    tools: [{ type: "function" as const, name: "weather", parameters, strict: false }],
  };
  const client = (url: string) =>
    new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-x", maxRetries: 0 });
  const kept = ({
    status,
    output,
    usage,
    error,
    incomplete_details,
    model,
  }: OpenAI.Responses.Response) => ({
    status,
    output,
    usage,
    error,
    incomplete_details,
    model,
  });

  it("not streamed", async () => {
    expectSame(await both(async (url) => kept(await client(url).responses.create(request))));
    await expectRecords(1);
  });

  it("streamed: each item's own events in their order, and the whole response", async () => {
    const outcome = await both(async (url) => {
      // Items may be open at the same time: a message of ours ends with the response.
      const events = new Map<number, unknown[]>();
      let last: unknown;
      const stream = await client(url).responses.create({ ...request, stream: true });
      for await (const { sequence_number: _number, ...event } of stream) {
        const index = "output_index" in event ? event.output_index : -1;
        const shown = "response" in event ? { ...event, response: kept(event.response) } : event;
        events.set(index, [...(events.get(index) ?? []), shown]);
        last = shown;
      }
      return { events: [...events], last };
    });
    expectSame(outcome);
    await expectRecords(1);
  });

  it.each([true, false])("tools over two turns, stream %s", async (stream) => {
    const outcome = await both(async (url) => {
      const input: OpenAI.Responses.ResponseInput = [{ role: "user", content: request.input }];
      const outputs: unknown[] = [];
      for (let turn = 0; turn < 2; turn += 1) {
        const turnRequest = { ...request, input };
        const answer = stream
          ? await client(url).responses.stream(turnRequest).finalResponse()
          : await client(url).responses.create(turnRequest);
        outputs.push(kept(answer as OpenAI.Responses.Response));
        for (const item of answer.output) {
          input.push(item as OpenAI.Responses.ResponseInputItem);
          if (item.type !== "function_call") continue;
          input.push({ type: "function_call_output", call_id: item.call_id, output: "rain" });
        }
      }
      return outputs;
    });
    expectSame(outcome);
    await expectRecords(2);
  });

  it("an abort in mid-stream: the same so far, the engine's request ended", async () => {
    const held = new Promise<never>(() => {});
    engine.setScript(
      vllmScript({
        answer: () => says,
        betweenEvents: (index) => (index === 3 ? held : undefined),
      }),
    );
    own.setScript(
      ownDialectScript({
        answer: () => says,
        usage: { promptTokens: 1, completionTokens: 1 },
        betweenEvents: (index) => (index === 6 ? held : undefined),
      }),
    );
    const ask = async (url: string) => {
      const stream = await client(url).responses.create({ ...request, stream: true });
      let seen = "";
      for await (const event of stream) {
        if (event.type === "response.output_text.delta") seen += event.delta;
        if (seen.length > 4) break;
      }
      return seen;
    };
    const through = await ask(proxied.url);
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
    expect(through).toBe(await ask(own.url));
    expect(through).toBe("It rains");
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
  });
});

describe("Vercel AI SDK", () => {
  const tools = {
    weather: tool({
      inputSchema: jsonSchema<{ city: string }>(parameters),
      execute: async ({ city }) => `rain in ${city}`,
    }),
  };
  const anthropic = (url: string) =>
    createAnthropic({ baseURL: `${url}/v1`, apiKey: "sk-x" })("toy");

  it.each([true, false])("anthropic: a tool loop equals direct, stream %s", async (stream) => {
    const outcome = await both(async (url) => {
      const options = {
        model: anthropic(url),
        prompt: "hello there",
        maxOutputTokens: 100,
        tools,
        stopWhen: stepCountIs(3),
        maxRetries: 0,
      };
      const answer = stream ? streamText(options) : await generateText(options);
      return (await answer.steps).map((step) => ({
        text: step.text,
        reasoning: step.reasoningText,
        finish: step.finishReason,
        calls: step.toolCalls.map(({ toolName, toolCallId, input }) => [
          toolName,
          toolCallId,
          input,
        ]),
        results: step.toolResults.map(({ output }) => output),
        usage: [step.usage.inputTokens, step.usage.outputTokens],
      }));
    });
    expectSame(outcome);
    expect(outcome.through).toMatchObject([{ finish: "tool-calls" }, { finish: "stop" }]);
    await expectRecords(2);
  });

  it.each(["anthropic", "openai-compatible"])("%s: an abort in mid-stream", async (provider) => {
    const held = new Promise<never>(() => {});
    engine.setScript(
      vllmScript({
        answer: () => says,
        betweenEvents: (index) => (index === 3 ? held : undefined),
      }),
    );
    const model =
      provider === "anthropic"
        ? anthropic(proxied.url)
        : createOpenAICompatible({ name: "x", baseURL: `${proxied.url}/v1` })("toy");
    const gone = new AbortController();
    const stream = streamText({
      model,
      prompt: "hi",
      maxOutputTokens: 100,
      abortSignal: gone.signal,
      maxRetries: 0,
      onError: () => undefined,
    });
    let seen = "";
    for await (const text of stream.textStream) {
      seen += text;
      if (seen.length > 4) gone.abort();
    }
    expect(seen).toBe("It rains");
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
    const [call] = await proxied.recorded(1);
    expect(call).toMatchObject({ delivered: false, errorReason: "harness-aborted" });
    expect(call?.choices[0]?.responseIds?.length).toBe(2);
  });
});
