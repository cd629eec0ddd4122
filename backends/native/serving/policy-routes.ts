import { randomUUID } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { PolicyModel } from "../model/load-model.ts";
import { type ChatRequest, parseChatRequest } from "./chat-request.ts";
import { chatCompletion, createChatChunks } from "./chat-response.ts";
import { parseCompletionRequest } from "./completion-request.ts";
import { createCompletionChunks, textCompletion } from "./completion-response.ts";
import { badRequest, textOverflow } from "./error-response.ts";
import { parseBody } from "./generation-fields.ts";
import {
  type Exchange,
  type Handler,
  readBody,
  sendJson,
  startEvents,
  writeEvent,
} from "./http-exchange.ts";
import type { ServingEngine } from "./policy-engine.ts";
import type { ResponseHead } from "./response-parts.ts";
import { planChoices, runChoices } from "./run-choices.ts";

export interface PolicyRoutesOptions {
  readonly engine: ServingEngine;
  readonly model: PolicyModel;
  /** The name under which the policy is served; requests are not refused for another one. */
  readonly modelName: string;
  readonly now?: () => number;
  readonly newId?: () => string;
}

/** The handlers by method and path. */
export function policyRoutes(options: PolicyRoutesOptions): ReadonlyMap<string, Handler> {
  const { engine, modelName } = options;
  const now = options.now ?? Date.now;
  const newId = options.newId ?? (() => randomUUID().replaceAll("-", ""));
  const startedAt = Math.floor(now() / 1000);
  const head = (prefix: string): ResponseHead => ({
    id: `${prefix}-${newId()}`,
    created: Math.floor(now() / 1000),
    model: modelName,
  });
  const health: Handler = ({ response }) => sendJson(response, 200, { status: "ok" });
  return new Map<string, Handler>([
    ["GET /healthz", health],
    ["GET /health", health],
    [
      "GET /v1/models",
      ({ response }) => {
        const entry = { id: modelName, object: "model", created: startedAt, owned_by: "outrigger" };
        const more = { max_model_len: engine.maxLength, policy_version: engine.version };
        sendJson(response, 200, { object: "list", data: [{ ...entry, ...more }] });
      },
    ],
    ["POST /v1/chat/completions", (exchange) => chat(options, exchange, head("chatcmpl"), newId)],
    ["POST /v1/completions", (exchange) => completions(options, exchange, head("cmpl"))],
    [
      "POST /tokenize",
      async ({ request, response }) => {
        const tokens = tokenize(options, await readBody(request));
        const json = { count: tokens.length, max_model_len: engine.maxLength, tokens };
        sendJson(response, 200, json);
      },
    ],
  ]);
}

/**
 * Encodes a text that may fit in the context; refuses one that cannot before it is encoded, which
 * would keep everybody else waiting.
 */
function encode(
  { engine: { maxLength }, model: { tokenizer } }: PolicyRoutesOptions,
  text: string,
  addSpecialTokens: boolean,
): Int32Array {
  const leastTokens = Math.ceil(text.length / tokenizer.maxUnitsPerToken);
  if (leastTokens > maxLength) throw textOverflow(maxLength, leastTokens);
  return tokenizer.encode(text, addSpecialTokens);
}

function renderPrompt(options: PolicyRoutesOptions, request: ChatRequest): Int32Array {
  const { model } = options;
  if (model.chatTemplate === undefined) {
    throw badRequest("this model has no chat template; use /v1/completions");
  }
  const text = model.chatTemplate.render({
    messages: request.messages,
    tools: request.tools,
    addGenerationPrompt: request.addGenerationPrompt,
    extra: request.templateVariables,
  });
  // The template writes the special tokens itself.
  return encode(options, text, false);
}

async function chat(
  options: PolicyRoutesOptions,
  { request: http, response, signal }: Exchange,
  head: ResponseHead,
  newId: () => string,
): Promise<void> {
  const { engine, model } = options;
  const request = parseChatRequest(await readBody(http));
  const promptIds = renderPrompt(options, request);
  const plan = planChoices(engine, model, promptIds, request, {
    topLogprobs: request.topLogprobs,
    parsesToolCalls: request.tools.length > 0,
  });
  refuseWhenFull(engine, request.choiceCount);
  const context = {
    head,
    request,
    promptIds,
    tokenizer: model.tokenizer,
    newToolCallId: () => `chatcmpl-tool-${newId()}`,
  };
  if (!request.isStreamed) {
    const finished = await runChoices(engine, model, plan, signal, () => undefined);
    sendJson(response, 200, chatCompletion(context, finished));
    return;
  }
  const chunks = createChatChunks(context);
  startEvents(response);
  writeEvent(response, chunks.first());
  const finished = await runChoices(engine, model, plan, signal, (index, delta, ended) => {
    writeEvent(response, chunks.delta(index, delta));
    if (ended) writeEvent(response, chunks.end(index, ended.end, ended.choice.versions));
  });
  if (request.includesUsage) writeEvent(response, chunks.usage(finished));
  response.end("data: [DONE]\n\n");
}

async function completions(
  options: PolicyRoutesOptions,
  { request: http, response, signal }: Exchange,
  head: ResponseHead,
): Promise<void> {
  const { engine, model } = options;
  const request = parseCompletionRequest(await readBody(http));
  const prompts: Int32Array[] = [];
  for (const prompt of request.prompts) {
    // Others have their turn between the prompts of a long list.
    if (prompts.length > 0) await setImmediate();
    prompts.push(
      typeof prompt === "string" ? encode(options, prompt, true) : Int32Array.from(prompt),
    );
  }
  const plans = prompts.map((promptIds) =>
    planChoices(engine, model, promptIds, request, {
      topLogprobs: request.logprobs ?? 0,
      parsesToolCalls: false,
    }),
  );
  refuseWhenFull(engine, plans.length * request.choiceCount);
  const context = { head, request, tokenizer: model.tokenizer, prompts };
  const chunks = createCompletionChunks(context);
  if (request.isStreamed) startEvents(response);
  const all = await Promise.all(
    plans.map((plan, promptIndex) =>
      runChoices(engine, model, plan, signal, (i, delta, ended) => {
        if (!request.isStreamed) return;
        const index = promptIndex * request.choiceCount + i;
        writeEvent(response, chunks.delta(index, delta));
        if (ended) writeEvent(response, chunks.end(index, ended.end, ended.choice.versions));
      }),
    ),
  );
  if (!request.isStreamed) return sendJson(response, 200, textCompletion(context, all));
  if (request.includesUsage) writeEvent(response, chunks.usage(all));
  response.end("data: [DONE]\n\n");
}

const tokenizeSchema = z.looseObject({
  prompt: z.string().optional(),
  messages: z.array(z.unknown()).optional(),
  add_special_tokens: z.boolean().default(true),
});

function tokenize(options: PolicyRoutesOptions, bytes: Uint8Array): number[] {
  const body = parseBody(tokenizeSchema, bytes);
  if (body.messages !== undefined) {
    return Array.from(renderPrompt(options, parseChatRequest(bytes)));
  }
  if (body.prompt === undefined) throw badRequest("either prompt or messages is required");
  return Array.from(encode(options, body.prompt, body.add_special_tokens));
}

/** Before the first byte, so that it is a status and not an event in the stream. */
function refuseWhenFull(engine: ServingEngine, count: number): void {
  if (engine.hasRoomFor(count)) return;
  throw new OutriggerError("queue-full", `${engine.waitingCount} requests are waiting already`, {
    origin: "engine",
    retryable: true,
  });
}
