import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { readEvents } from "../conformance/run-dialect.ts";
import {
  jsonSteps,
  type ScriptedEngine,
  type Step,
  startScriptedEngine,
} from "../conformance/scripted-engine.ts";
import { vllmScript } from "../conformance/vllm-script.ts";
import { post } from "./post.ts";
import { askIn, dialectNames } from "./sidecar-dialect-requests.ts";
import { startTestSidecar, type TestSidecar, until } from "./sidecar-support.ts";

let engine: ScriptedEngine;
let proxied: TestSidecar;
/** Its harnesses get keep-alives soon; those of the other none, however slow the machine is. */
let keptAlive: TestSidecar;

beforeAll(async () => {
  engine = await startScriptedEngine(vllmScript());
  proxied = await startTestSidecar([engine.url], { keepAliveMs: 0 });
  keptAlive = await startTestSidecar([engine.url], { keepAliveMs: 20 });
});
beforeEach(() => {
  engine.setScript(vllmScript());
  proxied.calls.length = 0;
  keptAlive.calls.length = 0;
});
afterAll(async () => {
  await proxied.close();
  await keptAlive.close();
  await engine.close();
});

const statuses = [400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529];

const anthropicTypes: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  500: "api_error",
  502: "api_error",
  503: "overloaded_error",
  504: "api_error",
  529: "overloaded_error",
};

/** What harnesses and their SDKs act on. */
const hints = {
  "retry-after": "7",
  "retry-after-ms": "1500",
  "x-should-retry": "true",
  "anthropic-ratelimit-requests-remaining": "0",
  "anthropic-ratelimit-tokens-reset": "2030-01-01T00:00:00Z",
  "x-ratelimit-remaining-requests": "3",
  "x-ratelimit-reset-tokens": "6ms",
  "x-request-id": "req-a",
  "request-id": "req-b",
};

function refusal(status: number, body: string, headers: object = hints): Step[] {
  const type = { "content-type": "application/json" };
  return [{ head: status, headers: { ...type, ...headers } }, { write: body }, { end: true }];
}

const overflow = JSON.stringify({
  error: {
    message:
      "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the messages, 500 in the completion).",
    type: "BadRequestError",
    code: 400,
  },
});

const ways = dialectNames.flatMap((dialect) =>
  [false, true].map((stream) => [dialect, stream] as const),
);

describe("an engine's refusal: status, hints and meaning arrive, and it is asked once", () => {
  it.each(ways)("%s, stream %s", async (dialect, stream) => {
    const said = '{"error": {"message":"no such thing", "type":"t"}}\n';
    for (const [turn, status] of statuses.entries()) {
      engine.setScript(() => refusal(status, said));
      const before = engine.requests.length;
      const answer = await askIn(dialect, proxied.url, { stream });
      expect(engine.requests.length - before, `${status}`).toBe(1);
      expect(answer).toMatchObject({ status, headers: hints, end: "clean" });
      if (dialect === "chat" || dialect === "completions") expect(answer.body).toBe(said);
      else {
        const { type, error } = JSON.parse(answer.body) as Record<string, Record<string, string>>;
        expect(error?.["message"]).toBe("no such thing");
        if (dialect === "messages") {
          const expected = anthropicTypes[status] ?? "invalid_request_error";
          expect([type, error?.["type"]]).toEqual(["error", expected]);
        } else if (status === 429) expect(error?.["code"]).toBe("rate_limit_exceeded");
      }
      const record = (await proxied.recorded(turn + 1)).at(-1);
      expect(record).toMatchObject({
        dialect,
        httpStatus: status,
        errorReason: `engine-status-${status}`,
        delivered: false,
        choices: [],
      });
    }
  });

  it.each(dialectNames)("%s: without hints none are made up", async (dialect) => {
    engine.setScript(() => refusal(429, '{"error":{"message":"m"}}', {}));
    const { headers } = await askIn(dialect, proxied.url);
    for (const name of Object.keys(hints)) expect(headers).not.toHaveProperty([name]);
  });

  it.each(dialectNames)("%s: a date as Retry-After, and a page of a proxy's", async (dialect) => {
    const page = "<html><body>502 Bad Gateway</body></html>";
    const date = "Wed, 21 Oct 2026 07:28:00 GMT";
    engine.setScript(() =>
      refusal(502, page, { "content-type": "text/html", "retry-after": date }),
    );
    const answer = await askIn(dialect, proxied.url);
    expect(answer).toMatchObject({ status: 502, headers: { "retry-after": date } });
    if (dialect === "chat" || dialect === "completions") {
      expect([answer.body, answer.headers["content-type"]]).toEqual([page, "text/html"]);
    } else {
      expect(answer.headers["content-type"]).toBe("application/json");
      expect(JSON.parse(answer.body)).toMatchObject({ error: { message: page } });
    }
  });
});

describe("a prompt that is too long, as each harness understands it", () => {
  it.each([
    ["chat", false],
    ["chat", true],
    ["completions", false],
    ["completions", true],
  ] as const)("%s, stream %s: the engine's own words", async (dialect, stream) => {
    engine.setScript(() => refusal(400, overflow));
    const answer = await askIn(dialect, proxied.url, { stream });
    expect([answer.status, answer.body]).toEqual([400, overflow]);
  });

  it.each([false, true])("messages, stream %s: the words that compact", async (stream) => {
    engine.setScript(() => refusal(400, overflow));
    const answer = await askIn("messages", proxied.url, { stream });
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.body)).toMatchObject({
      error: {
        type: "invalid_request_error",
        message: "prompt is too long: 5000 tokens > 4096 maximum",
      },
    });
  });

  it("responses: the code that compacts", async () => {
    engine.setScript(() => refusal(400, overflow));
    const answer = await askIn("responses", proxied.url);
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.body)).toMatchObject({ error: { code: "context_length_exceeded" } });
  });

  it("responses, streamed: a failed stream with that code, for the record still a 400", async () => {
    engine.setScript(() => refusal(400, overflow));
    const answer = await askIn("responses", proxied.url, { stream: true });
    expect(answer).toMatchObject({ status: 200, end: "clean" });
    expect(answer.headers["content-type"]).toContain("text/event-stream");
    const events = readEvents(answer.body);
    expect(events.map(([name]) => name)).toEqual([
      "response.created",
      "response.in_progress",
      "response.failed",
    ]);
    expect(events.at(-1)?.[1]).toMatchObject({
      response: { status: "failed", error: { code: "context_length_exceeded" } },
    });
    const [record] = await proxied.recorded(1);
    expect(record).toMatchObject({ httpStatus: 400, delivered: false, choices: [] });
  });
});

describe("a refusal after keep-alives were sent: only the stream can say it", () => {
  async function refusedLate(
    dialect: "messages" | "responses",
    status: number,
    said = '{"error":{"message":"too busy"}}',
  ) {
    let release = (): void => undefined;
    const silence = new Promise<void>((resolve) => {
      release = resolve;
    });
    engine.setScript(() => [{ until: silence }, ...refusal(status, said)]);
    const answer = await askIn(
      dialect,
      keptAlive.url,
      { stream: true },
      { onFirstByte: () => release() },
    );
    return { answer, events: readEvents(answer.body) };
  }

  it("messages", async () => {
    for (const [status, type] of [
      [429, "rate_limit_error"],
      [503, "overloaded_error"],
      [500, "api_error"],
    ] as const) {
      const { answer, events } = await refusedLate("messages", status);
      expect(answer).toMatchObject({ status: 200, end: "broken" });
      expect(events.at(-1)).toMatchObject(["error", { error: { type } }]);
      expect(JSON.stringify(events.at(-1))).toContain("too busy");
    }
    const record = (await keptAlive.recorded(3))[0];
    expect(record).toMatchObject({ httpStatus: 429, delivered: false });
  });

  it("responses", async () => {
    const { answer, events } = await refusedLate("responses", 429);
    expect(answer).toMatchObject({ status: 200, end: "broken" });
    expect(events.at(-1)).toMatchObject([
      "response.failed",
      { response: { status: "failed", error: { code: "rate_limit_exceeded" } } },
    ]);
    // What Codex reads its delay from: the engine's Retry-After.
    expect(JSON.stringify(events.at(-1))).toContain("try again in 7s");
  });

  it("a prompt that is too long, in the words and the code that compact", async () => {
    const { events } = await refusedLate("messages", 400, overflow);
    expect(events.at(-1)).toMatchObject([
      "error",
      {
        error: {
          type: "invalid_request_error",
          message: "prompt is too long: 5000 tokens > 4096 maximum",
        },
      },
    ]);
    const late = await refusedLate("responses", 400, overflow);
    expect(late.events.at(-1)?.[1]).toMatchObject({
      response: { error: { code: "context_length_exceeded" } },
    });
  });
});

describe("a hold that outlasts its limit, after keep-alives", () => {
  it.each([
    ["messages", ["error", { error: { type: "rate_limit_error" } }]],
    [
      "responses",
      [
        "response.failed",
        {
          response: {
            error: {
              code: "rate_limit_exceeded",
              message: expect.stringMatching(/try again in \d+s/),
            },
          },
        },
      ],
    ],
  ] as const)("%s: said inside the stream, which breaks", async (dialect, last) => {
    const order = { commandId: "p", reason: "update", drainLimitMs: 0 };
    keptAlive.sidecar.applyGate({ ...order, paused: true, holdLimitMs: 300 });
    const answer = await askIn(dialect, keptAlive.url, { stream: true });
    keptAlive.sidecar.applyGate({ ...order, paused: false, holdLimitMs: 0 });
    expect(answer.end).toBe("broken");
    const events = readEvents(answer.body);
    expect(events.length).toBeGreaterThan(1);
    expect(events.at(-1)).toMatchObject(last);
    expect(keptAlive.calls).toEqual([]);
  });

  it.each(dialectNames)("%s, not streamed: 429 with Retry-After", async (dialect) => {
    const order = { commandId: "p", reason: "update", drainLimitMs: 0 };
    const before = engine.requests.length;
    keptAlive.sidecar.applyGate({ ...order, paused: true, holdLimitMs: 20 });
    const answer = await askIn(dialect, keptAlive.url);
    keptAlive.sidecar.applyGate({ ...order, paused: false, holdLimitMs: 0 });
    expect(answer.status).toBe(429);
    expect(Number(answer.headers["retry-after"])).toBeGreaterThan(0);
    expect(engine.requests.length).toBe(before);
    const { error } = JSON.parse(answer.body) as { error: Record<string, string> };
    if (dialect === "responses") expect(error["code"]).toBe("rate_limit_exceeded");
    else expect(error["type"]).toBe("rate_limit_error");
  });
});

describe("count_tokens", () => {
  const body = JSON.stringify({ model: "toy", messages: [{ role: "user", content: "hi there" }] });
  const count = () => post(proxied.url, body, { path: "/v1/messages/count_tokens?beta=true" });
  const paths = (since: number) => engine.requests.slice(since).map(({ url }) => url);

  it("an engine with the route of its own is asked there, with the request as it came", async () => {
    engine.setScript((request) =>
      request.url === "/v1/messages/count_tokens"
        ? jsonSteps(200, { input_tokens: 12 })
        : jsonSteps(500, {}),
    );
    const before = engine.requests.length;
    const answer = await count();
    expect([answer.status, JSON.parse(answer.body)]).toEqual([200, { input_tokens: 12 }]);
    expect(paths(before)).toEqual(["/v1/messages/count_tokens"]);
    expect(engine.requests.at(-1)?.body.toString()).toBe(body);
  });

  it.each([404, 405])("one without it (%i) is asked for its tokens", async (status) => {
    engine.setScript((request) =>
      request.url === "/tokenize"
        ? jsonSteps(200, { count: 7, max_model_len: 4096, tokens: [1, 2, 3, 4, 5, 6, 7] })
        : jsonSteps(status, { detail: "Not Found" }),
    );
    const before = engine.requests.length;
    const answer = await count();
    expect([answer.status, JSON.parse(answer.body)]).toEqual([200, { input_tokens: 7 }]);
    expect(paths(before)).toEqual(["/v1/messages/count_tokens", "/tokenize"]);
    expect(engine.requests.at(-1)?.json).toMatchObject({
      messages: [{ role: "user", content: "hi there" }],
      add_generation_prompt: true,
    });
  });

  it("one that can do neither: its status, in Anthropic's shape; nothing is recorded", async () => {
    engine.setScript(() => jsonSteps(404, { detail: "Not Found" }));
    const answer = await count();
    expect(answer.status).toBe(404);
    expect(JSON.parse(answer.body)).toMatchObject({
      type: "error",
      error: { type: "not_found_error" },
    });
    expect(proxied.calls).toEqual([]);
  });

  it("an engine that refuses says so itself, and when to come back", async () => {
    const error = { type: "error", error: { type: "overloaded_error", message: "later" } };
    engine.setScript(() => refusal(529, JSON.stringify(error)));
    const answer = await count();
    expect(answer).toMatchObject({ status: 529, headers: hints, body: JSON.stringify(error) });
    engine.setScript((request) =>
      request.url === "/tokenize" ? refusal(429, '{"detail":"later"}') : jsonSteps(404, {}),
    );
    expect(await count()).toMatchObject({ status: 429, headers: hints });
  });

  it("a harness that hangs up ends the engine's request", async () => {
    engine.setScript(() => [{ until: new Promise(() => {}) }]);
    const gone = new AbortController();
    const before = engine.requests.length;
    const asked = fetch(`${proxied.url}/v1/messages/count_tokens`, {
      method: "POST",
      body,
      signal: gone.signal,
    });
    await until(() => engine.requests.length > before);
    gone.abort();
    await expect(asked).rejects.toThrow();
    expect(await engine.requests.at(-1)?.aborted).toBeGreaterThan(0);
  });
});
