import { createServer } from "node:http";
import process from "node:process";

/**
 * The engine of the bench: answers as vLLM does, ids and logprobs only where asked for, and says
 * when it wrote each chunk (`t`, milliseconds) so that the delay of a relay can be measured.
 * A streaming request's `max_tokens` is the number of chunks, `user` the pause between them in ms.
 */
const whole = (tokens: number, ids: boolean): Buffer =>
  Buffer.from(
    JSON.stringify({
      id: "chatcmpl-1",
      object: "chat.completion",
      created: 1,
      model: "m",
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: "token ".repeat(tokens) },
          logprobs: ids
            ? {
                content: Array.from({ length: tokens }, () => ({
                  token: "token ",
                  logprob: -0.25,
                  bytes: null,
                  top_logprobs: [],
                })),
              }
            : null,
          finish_reason: "stop",
          ...(ids ? { token_ids: Array.from({ length: tokens }, (_, i) => 100 + i) } : {}),
        },
      ],
      usage: { prompt_tokens: 64, completion_tokens: tokens, total_tokens: 64 + tokens },
      ...(ids ? { prompt_token_ids: Array.from({ length: 64 }, (_, i) => i + 1) } : {}),
    }),
  );

const chunk = (index: number, count: number, ids: boolean): string =>
  `data: ${JSON.stringify({
    id: "chatcmpl-1",
    object: "chat.completion.chunk",
    created: 1,
    model: "m",
    t: performance.timeOrigin + performance.now(),
    choices: [
      {
        index: 0,
        delta: { content: "token " },
        logprobs: ids
          ? { content: [{ token: "token ", logprob: -0.25, bytes: [116], top_logprobs: [] }] }
          : null,
        finish_reason: index === count - 1 ? "stop" : null,
        ...(ids ? { token_ids: [100 + index] } : {}),
      },
    ],
    ...(ids && index === 0
      ? { prompt_token_ids: Array.from({ length: 64 }, (_, i) => i + 1) }
      : {}),
  })}\n\n`;

const usage = (count: number): string =>
  `data: ${JSON.stringify({ id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "m", choices: [], usage: { prompt_tokens: 64, completion_tokens: count, total_tokens: 64 + count } })}\n\n`;

interface EngineRequest {
  readonly stream?: boolean;
  readonly max_tokens?: number;
  readonly user?: string;
  readonly return_token_ids?: boolean;
  readonly stream_options?: { readonly include_usage?: boolean };
}

const server = createServer((request, response) => {
  const parts: Buffer[] = [];
  request.on("data", (part: Buffer) => parts.push(part));
  request.on("end", () => {
    if (request.method === "GET") {
      response.setHeader("content-type", "application/json");
      response.end('{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}');
      return;
    }
    const body = JSON.parse(Buffer.concat(parts).toString()) as EngineRequest;
    const ids = body.return_token_ids === true;
    const count = body.max_tokens ?? 16;
    if (body.stream !== true) {
      const bytes = whole(count, ids);
      response.writeHead(200, {
        "content-type": "application/json",
        "content-length": bytes.length,
      });
      response.end(bytes);
      return;
    }
    response.writeHead(200, { "content-type": "text/event-stream" });
    const pauseMs = Number(body.user ?? 0);
    let index = 0;
    const next = (): void => {
      if (response.destroyed) return;
      if (index < count) {
        response.write(chunk(index, count, ids));
        index += 1;
        if (pauseMs > 0) setTimeout(next, pauseMs);
        else setImmediate(next);
        return;
      }
      if (body.stream_options?.include_usage === true) response.write(usage(count));
      response.end("data: [DONE]\n\n");
    };
    next();
  });
});
server.listen(0, "127.0.0.1", () => {
  process.send?.({ port: (server.address() as { port: number }).port });
});
