import { mkdtemp } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, beforeAll, describe, expect, it } from "vitest";
import { openLog } from "../../../runtime/log.ts";
import { smallModelIds, writeSmallModel } from "../../../test/contract/trainer-backend-model.ts";
import { type LoadedModel, loadModel } from "../model/load-model.ts";
import { decodeIds } from "../model/text-decoder.ts";
import { PolicyEngine } from "./policy-engine.ts";
import { openPolicyServer, type PolicyServer } from "./policy-server.ts";
import { certain, createScriptedSession } from "./scripted-session.ts";

const vocabSize = 272;
const log = openLog({ level: "silent", process: "test" });
let model: LoadedModel;
let engine: PolicyEngine;
let server: PolicyServer;

beforeAll(async () => {
  const directory = await mkdtemp(join(tmpdir(), "policy-server-"));
  await writeSmallModel(directory);
  model = await loadModel(directory);
});

/** A policy that answers every chat with `response`, and every other prompt with its own text. */
async function serve(response: string, options: { apiKey?: string; slots?: number } = {}) {
  const answer = [...model.tokenizer.encode(response, false), smallModelIds.imEnd];
  const session = createScriptedSession((context) => {
    const turn = context.lastIndexOf(smallModelIds.imStart);
    // A turn starts with its mark and "assistant\n".
    const done = turn < 0 ? 0 : context.length - (turn + 11);
    return certain(vocabSize, turn < 0 ? (context[0] as number) : (answer[done] ?? 0));
  });
  const { slots = 4, apiKey } = options;
  engine = new PolicyEngine({ session, slots, maxLength: 512, version: 5, seed: 1, maxWaiting: 2 });
  server = await openPolicyServer({
    engine,
    model,
    modelName: "small",
    host: "127.0.0.1",
    port: 0,
    log,
    apiKey,
  });
  return new OpenAI({ baseURL: server.url, apiKey: "a-key-of-some-length", maxRetries: 0 });
}

afterEach(async () => {
  server.destroy();
  await engine.destroy();
});

const messages = [{ role: "user" as const, content: "hi" }];
const tools = [
  { type: "function" as const, function: { name: "calc", parameters: { type: "object" } } },
];
const capture = { return_token_ids: true, logprobs: true, top_logprobs: 0 };

interface Chunk {
  readonly prompt_token_ids?: number[];
  readonly choices: {
    readonly index: number;
    readonly delta: {
      readonly content?: string;
      readonly tool_calls?: {
        index: number;
        id: string;
        function: { name: string; arguments: string };
      }[];
    };
    readonly logprobs: { readonly content: { readonly logprob: number }[] } | null;
    readonly finish_reason: string | null;
    readonly stop_reason?: unknown;
    readonly token_ids?: number[];
    readonly policy_versions?: unknown;
  }[];
  readonly usage?: { readonly completion_tokens: number } | null;
}

async function chunksOf(client: OpenAI, body: Record<string, unknown>): Promise<Chunk[]> {
  const stream = await client.chat.completions.create({
    model: "small",
    messages,
    stream: true,
    ...body,
  } as OpenAI.ChatCompletionCreateParamsStreaming);
  const chunks: Chunk[] = [];
  for await (const chunk of stream) chunks.push(chunk as unknown as Chunk);
  return chunks;
}

interface Completion {
  readonly prompt_token_ids?: number[];
  readonly choices: {
    readonly message: { content: string | null; tool_calls?: { id: string; function: object }[] };
    readonly logprobs: { readonly content: { readonly logprob: number }[] } | null;
    readonly finish_reason: string;
    readonly stop_reason: unknown;
    readonly token_ids?: number[];
    readonly policy_versions?: unknown;
  }[];
  readonly usage: { readonly completion_tokens: number; readonly prompt_tokens: number };
}

const complete = async (client: OpenAI, body: Record<string, unknown>): Promise<Completion> =>
  (await client.chat.completions.create({
    model: "small",
    messages,
    ...body,
  } as OpenAI.ChatCompletionCreateParamsNonStreaming)) as unknown as Completion;

const joined = (chunks: readonly Chunk[], index = 0): string =>
  chunks
    .flatMap((c) => c.choices.filter((x) => x.index === index))
    .map((c) => c.delta.content ?? "")
    .join("");

const call = '<tool_call>\n{"name": "calc", "arguments": {"a": 1}}\n</tool_call>';

describe("policy server", () => {
  it.each<[string, string, Record<string, unknown>, string | null, string, unknown, number]>([
    ["plain text with characters of several bytes", "né€😀!", {}, "né€😀!", "stop", null, 0],
    ["a cut response", "hello", { max_tokens: 3 }, "hel", "length", null, 0],
    ["a cut within a character", "ab€", { max_tokens: 4 }, "ab\uFFFD", "length", null, 0],
    ["a stop string", "one, two, three", { stop: ["zz", ", t"] }, "one", "stop", ", t", 0],
    ["a stop id", "abc", { stop_token_ids: [98] }, "a", "stop", 98, 0],
    ["text and tool calls", `See.\n${call}\n${call}`, { tools }, "See.", "tool_calls", null, 2],
    ["only a tool call", call, { tools }, null, "tool_calls", null, 1],
    ["a cut tool call", call, { tools, max_tokens: 20 }, call.slice(0, 20 + 10), "length", null, 0],
    ["a call nobody offered", call, {}, call, "stop", null, 0],
    ["a call with tool_choice none", call, { tools, tool_choice: "none" }, call, "stop", null, 0],
  ])("gives %s, streamed and not", async (_what, response, body, content, finish, stop, calls) => {
    const client = await serve(response);
    const whole = await complete(client, { ...body, ...capture });
    const choice = whole.choices[0]!;
    expect(choice.message.content).toBe(content);
    expect(choice).toMatchObject({ finish_reason: finish, stop_reason: stop });
    expect(choice.message.tool_calls?.length ?? 0).toBe(calls);
    for (const made of choice.message.tool_calls ?? []) {
      expect(made).toMatchObject({
        type: "function",
        function: { name: "calc", arguments: '{"a": 1}' },
      });
    }
    expect(choice.token_ids).toHaveLength(whole.usage.completion_tokens);
    expect(choice.logprobs?.content).toHaveLength(whole.usage.completion_tokens);
    const end = choice.token_ids!.length;
    expect(choice.policy_versions).toEqual([{ version: 5, start: 0, end }]);
    expect(whole.prompt_token_ids).toHaveLength(whole.usage.prompt_tokens);

    const chunks = await chunksOf(client, {
      ...body,
      ...capture,
      stream_options: { include_usage: true },
    });
    const parts = chunks.flatMap((c) => c.choices);
    expect(joined(chunks)).toBe(content ?? "");
    expect(parts.flatMap((p) => p.token_ids ?? [])).toEqual(choice.token_ids);
    expect(parts.flatMap((p) => p.logprobs?.content ?? [])).toHaveLength(end);
    const streamedCalls = parts.flatMap((p) => p.delta.tool_calls ?? []);
    expect(streamedCalls.map((c) => c.index)).toEqual(Array.from({ length: calls }, (_, i) => i));
    expect(streamedCalls.map((c) => c.function)).toEqual(
      (choice.message.tool_calls ?? []).map((c) => c.function),
    );
    expect(chunks.map((c) => c.prompt_token_ids).filter(Boolean)).toEqual([whole.prompt_token_ids]);
    expect(chunks[0]!.prompt_token_ids).toBeDefined();
    const finishes = parts.filter((p) => p.finish_reason !== null);
    expect(finishes).toHaveLength(1);
    expect(finishes[0]).toMatchObject({
      finish_reason: finish,
      stop_reason: stop,
      policy_versions: choice.policy_versions,
    });
    expect(finishes[0]!.token_ids).toBeUndefined();
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: end } });
  });

  it("shows nothing of the capture to a client that did not ask", async () => {
    const client = await serve("hello");
    const text = JSON.stringify([await complete(client, {}), await chunksOf(client, {})]);
    for (const field of ["token_ids", "policy_versions", '"logprobs":{', '"usage":null']) {
      expect(text).not.toContain(field);
    }
  });

  it("samples n choices", async () => {
    const client = await serve("yes");
    const whole = await complete(client, { n: 3 });
    expect(whole.choices.map((c) => c.message.content)).toEqual(["yes", "yes", "yes"]);
    const chunks = await chunksOf(client, { n: 3 });
    expect([0, 1, 2].map((i) => joined(chunks, i))).toEqual(["yes", "yes", "yes"]);
  });

  it("renders tools and earlier calls into the prompt", async () => {
    const client = await serve("ok");
    const history = [
      ...messages,
      {
        role: "assistant",
        content: null,
        tool_calls: [
          { id: "1", type: "function", function: { name: "calc", arguments: '{"a":1}' } },
        ],
      },
      {
        role: "tool",
        tool_call_id: "1",
        content: [
          { type: "text", text: "4" },
          { type: "text", text: "2" },
        ],
      },
    ];
    const whole = await complete(client, { messages: history, tools, return_token_ids: true });
    const prompt = decodeIds(model.tokenizer, whole.prompt_token_ids!);
    expect(prompt).toContain('{"name": "calc", "arguments": {"a": 1}}');
    expect(prompt).toContain('"type": "function"');
    expect(prompt).toContain("tool\n4\n2");
  });

  it("serves completions for text and for ids, streamed and not", async () => {
    const client = await serve("");
    const body = { model: "small", max_tokens: 3, logprobs: 1, return_token_ids: true };
    const whole = await client.completions.create({ ...body, prompt: [[104, 105], [106]] });
    expect(whole.choices.map((c) => c.text)).toEqual(["hhh", "jjj"]);
    expect(whole.choices).toMatchObject([
      { prompt_token_ids: [104, 105], token_ids: [104, 104, 104], finish_reason: "length" },
      {
        prompt_token_ids: [106],
        token_ids: [106, 106, 106],
        logprobs: { tokens: ["j", "j", "j"], text_offset: [0, 1, 2] },
      },
    ]);
    expect(whole.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 6 });
    const stream = await client.completions.create({ ...body, prompt: "kl", stream: true });
    const parts = [];
    for await (const chunk of stream)
      parts.push(
        ...(chunk.choices as unknown as {
          text: string;
          token_ids?: number[];
          prompt_token_ids?: number[];
          policy_versions?: unknown;
        }[]),
      );
    expect(parts.map((p) => p.text).join("")).toBe("kkk");
    expect(parts.flatMap((p) => p.token_ids ?? [])).toEqual([107, 107, 107]);
    expect(parts.map((p) => p.prompt_token_ids).filter(Boolean)).toEqual([[107, 108]]);
    expect(parts.at(-1)!.policy_versions).toEqual([{ version: 5, start: 0, end: 3 }]);
  });

  it.each<[string, Record<string, unknown>, number, RegExp]>([
    [
      "a prompt and response over the context",
      { max_tokens: 5000 },
      400,
      /maximum context length is 512 tokens.*requested/,
    ],
    [
      "a prompt over the context",
      { messages: [{ role: "user", content: "x".repeat(600) }] },
      400,
      /maximum context length is 512 tokens/,
    ],
    [
      "a prompt that is over the context before it is tokenised",
      { messages: [{ role: "user", content: "x".repeat(8_000_000) }] },
      400,
      /maximum context length is 512 tokens.*at least \d+ input tokens/,
    ],
    ["a tool without a function", { tools: [{ type: "function" }] }, 400, /tools\.0\.function/],
    ["a tool that is no function", { tools: [{ type: "web" }] }, 400, /tools\.0\.type: only/],
    ["a field of the wrong type", { temperature: "hot" }, 400, /temperature/],
    ["a penalty", { frequency_penalty: 0.5 }, 400, /frequency_penalty.*not supported/],
    ["a forced tool", { tools, tool_choice: "required" }, 400, /tool_choice/],
    [
      "an image",
      { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] },
      400,
      /image_url/,
    ],
    ["no messages", { messages: [] }, 400, /messages/],
    ["JSON mode", { response_format: { type: "json_object" } }, 400, /response_format/],
  ])("refuses %s as vLLM would", async (_what, body, status, message) => {
    const client = await serve("x");
    for (const stream of [false, true]) {
      const error = await complete(client, { ...body, stream }).catch((e: unknown) => e);
      expect(error).toMatchObject({ status, error: { type: "BadRequestError", code: status } });
      expect((error as Error).message).toMatch(message);
    }
  });

  it("answers what is not JSON, not served or not allowed with an error of that kind", async () => {
    await serve("x", { apiKey: "a-key-of-some-length" });
    const root = server.url.replace(/\/v1$/, "");
    const authorization = "Bearer a-key-of-some-length";
    const status = async (path: string, init: RequestInit): Promise<number> =>
      (await fetch(root + path, init)).status;
    expect(
      await status("/v1/chat/completions", {
        method: "POST",
        body: "{",
        headers: { authorization },
      }),
    ).toBe(400);
    const huge = { method: "POST", body: " ".repeat((16 << 20) + 1), headers: { authorization } };
    expect(await status("/v1/chat/completions", huge)).toBe(413);
    expect(await status("/v1/embeddings", { method: "POST", headers: { authorization } })).toBe(
      404,
    );
    expect(await status("/v1/models", {})).toBe(401);
    expect(await status("/v1/models", { headers: { authorization } })).toBe(200);
    expect(await status("/healthz", {})).toBe(200);
  });

  it("counts tokens as it would see them", async () => {
    await serve("x");
    const root = server.url.replace(/\/v1$/, "");
    const tokenize = async (body: unknown): Promise<unknown> =>
      (await fetch(`${root}/tokenize`, { method: "POST", body: JSON.stringify(body) })).json();
    expect(await tokenize({ prompt: "hi<|im_end|>" })).toEqual({
      count: 3,
      max_model_len: 512,
      tokens: [104, 105, 258],
    });
    expect(await tokenize({ messages })).toMatchObject({ count: 21 });
  });

  it("ends the sequences of a client that goes away", async () => {
    const client = await serve("x".repeat(400));
    const abort = new AbortController();
    const stream = await client.chat.completions.create(
      { model: "small", messages, stream: true, n: 2 },
      { signal: abort.signal },
    );
    const seen = stream[Symbol.asyncIterator]();
    await seen.next();
    abort.abort();
    await seen.next().catch(() => undefined);
    await expect.poll(() => engine.runningCount + engine.waitingCount).toBe(0);
    expect((await complete(client, { max_tokens: 2 })).choices[0]!.message.content).toBe("xx");
  });

  it("says when it is full, with a time to come back", async () => {
    const client = await serve("x".repeat(300), { slots: 1 });
    const running = Array.from({ length: 3 }, () => chunksOf(client, { max_tokens: 300 }));
    await expect.poll(() => engine.waitingCount).toBe(2);
    const refused = await complete(client, {}).catch((e: unknown) => e);
    expect(refused).toMatchObject({ status: 503 });
    expect((refused as { headers: Headers }).headers.get("retry-after")).toBe("1");
    await Promise.all(running);
  });

  it("names the port that is in use", async () => {
    await serve("x");
    const taken = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => taken.once("listening", resolve));
    const { port } = taken.address() as AddressInfo;
    const second = openPolicyServer({
      engine,
      model,
      modelName: "m",
      host: "127.0.0.1",
      port,
      log,
    });
    await expect(second).rejects.toMatchObject({
      reason: "port-unavailable",
      message: expect.stringContaining(String(port)) as string,
    });
    taken.close();
  });
});
