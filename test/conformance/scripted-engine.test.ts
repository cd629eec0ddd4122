import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  breakAt,
  jsonSteps,
  type ScriptedEngine,
  sameFor,
  startScriptedEngine,
  streamSteps,
} from "./scripted-engine.ts";
import { vllmScript } from "./vllm-script.ts";

let engine: ScriptedEngine;

beforeEach(async () => {
  engine = await startScriptedEngine(sameFor(jsonSteps(200, { ok: true })));
});

afterEach(() => engine.close());

async function send(body: object | string, path = "/v1/chat/completions"): Promise<Socket> {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  const socket = connect(Number(new URL(engine.url).port), "127.0.0.1");
  await once(socket, "connect");
  socket.write(
    `POST ${path} HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
  return socket;
}

/** Everything up to the end or the error of the connection. */
async function readAll(socket: Socket): Promise<{ text: string; error: string | undefined }> {
  const parts: Buffer[] = [];
  let error: string | undefined;
  socket.on("data", (part: Buffer) => {
    parts.push(part);
    if (Buffer.concat(parts).includes("\r\n0\r\n\r\n")) socket.end();
  });
  socket.on("error", (cause: NodeJS.ErrnoException) => {
    error = cause.code;
  });
  await new Promise((resolve) => socket.once("close", resolve));
  return { text: Buffer.concat(parts).toString("latin1"), error };
}

describe("the scripted engine", () => {
  it("writes exactly where it is told to", async () => {
    engine.setScript(sameFor(streamSteps("data: é\n\n", [7, 1, 100])));
    const { text } = await readAll(await send({}));
    const body = text.slice(text.indexOf("\r\n\r\n") + 4);
    expect(body).toBe("7\r\ndata: \u00c3\r\n1\r\n\u00a9\r\n2\r\n\n\n\r\n0\r\n\r\n");
  });

  it("resets after so many body bytes", async () => {
    engine.setScript(sameFor(breakAt(streamSteps("data: 1\n\ndata: 2\n\n", [9]), 12)));
    const { text, error } = await readAll(await send({}));
    expect(text).toContain("data: 1");
    expect(error).toBe("ECONNRESET");
  });

  it("ends politely in the middle", async () => {
    engine.setScript(sameFor(breakAt(streamSteps("data: 1\n\ndata: 2\n\n", [9]), 12, "end")));
    const { text, error } = await readAll(await send({}));
    expect(text).toContain("dat\r\n0\r\n\r\n");
    expect(error).toBeUndefined();
  });

  it("notices when the other side hangs up, and stops waiting", async () => {
    engine.setScript(
      sameFor([{ head: 200 }, { write: "a" }, { until: new Promise(() => {}) }, { end: true }]),
    );
    const socket = await send({});
    await once(socket, "data");
    socket.destroy();
    expect(await engine.requests[0]?.aborted).toBeGreaterThan(0);
    expect(await engine.requests[0]?.finished).toEqual({ wasAborted: true });
  });

  it("keeps requests as they were sent", async () => {
    const socket = await send('{"a": 1}', "/v1/x?y=1");
    await once(socket, "data");
    socket.destroy();
    expect(engine.requests[0]).toMatchObject({ method: "POST", url: "/v1/x?y=1", json: { a: 1 } });
    expect(engine.requests[0]?.body.toString()).toBe('{"a": 1}');
    expect(engine.requests[0]?.rawHeaders.join("|")).toContain("X-A|1|X-A|2");
  });
});

describe("the pretended vLLM", () => {
  const request = { model: "m", messages: [{ role: "user", content: "hi" }] };

  async function ask(body: object): Promise<Record<string, never>> {
    const response = await fetch(`${engine.url}/v1/chat/completions`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    return (await response.json()) as Record<string, never>;
  }

  it("says ids and logprobs only when asked, and a next prompt extends prompt and response", async () => {
    engine.setScript(vllmScript());
    expect(JSON.stringify(await ask(request))).not.toContain("token_ids");
    const asked = { ...request, return_token_ids: true, logprobs: true };
    const first = (await ask(asked)) as unknown as Answer;
    const [choice] = first.choices;
    expect(choice?.logprobs.content).toHaveLength(first.usage.completion_tokens);
    expect(choice?.token_ids).toHaveLength(first.usage.completion_tokens);
    const next = (await ask({
      ...asked,
      messages: [...request.messages, choice?.message, { role: "user", content: "more" }],
    })) as unknown as Answer;
    const context = [...first.prompt_token_ids, ...(choice?.token_ids ?? [])];
    expect(next.prompt_token_ids.slice(0, context.length)).toEqual(context);
  });

  it("gives the error, the models and the health that it is told to", async () => {
    engine.setScript(
      vllmScript({ error: { status: 429, body: { error: { message: "m" } } }, model: "toy-2" }),
    );
    expect(await ask(request)).toEqual({ error: { message: "m" } });
    const models = (await (await fetch(`${engine.url}/v1/models`)).json()) as object;
    expect(models).toMatchObject({ data: [{ id: "toy-2" }] });
    expect((await fetch(`${engine.url}/health`)).status).toBe(200);
  });
});

interface Answer {
  prompt_token_ids: number[];
  choices: { message: object; token_ids: number[]; logprobs: { content: object[] } }[];
  usage: { completion_tokens: number };
}
