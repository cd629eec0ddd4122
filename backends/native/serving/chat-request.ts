import { z } from "zod";
import type { ChatMessage } from "../model/chat-template.ts";
import { badRequest } from "./error-response.ts";
import {
  type GenerationFields,
  generationFields,
  generationShape,
  parseBody,
} from "./generation-fields.ts";

export interface ChatRequest extends GenerationFields {
  readonly messages: readonly ChatMessage[];
  /** Empty when the request has none or `tool_choice` is "none". */
  readonly tools: readonly unknown[];
  readonly addGenerationPrompt: boolean;
  readonly templateVariables: Readonly<Record<string, unknown>>;
  readonly returnsLogprobs: boolean;
  readonly topLogprobs: number;
}

const partSchema = z.looseObject({ type: z.string(), text: z.string().optional() });
const messageSchema = z.looseObject({
  role: z.string(),
  content: z.union([z.string(), z.array(partSchema)]).nullish(),
  tool_calls: z
    .array(
      z.looseObject({
        id: z.string().optional(),
        type: z.string().optional(),
        function: z.looseObject({ name: z.string(), arguments: z.unknown() }),
      }),
    )
    .nullish(),
});

const chatSchema = z.looseObject({
  ...generationShape,
  messages: z.array(messageSchema).min(1),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  tools: z
    .array(
      z.looseObject({
        type: z.literal("function", { error: 'only tools of type "function" are supported' }),
        function: z.looseObject({ name: z.string().min(1) }),
      }),
    )
    .nullish(),
  tool_choice: z.unknown().optional(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  response_format: z.looseObject({ type: z.literal("text") }).nullish(),
  add_generation_prompt: z.boolean().nullish(),
  continue_final_message: z.literal(false).nullish(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
});

export function parseChatRequest(bytes: Uint8Array): ChatRequest {
  const body = parseBody(chatSchema, bytes);
  const toolChoice = body.tool_choice ?? "auto";
  if (toolChoice !== "auto" && toolChoice !== "none") {
    throw badRequest(
      `tool_choice ${JSON.stringify(toolChoice)} is not supported: sampling cannot be forced into a call; use "auto" or "none"`,
    );
  }
  const returnsLogprobs = body.logprobs ?? false;
  if (!returnsLogprobs && (body.top_logprobs ?? 0) > 0) {
    throw badRequest("when using `top_logprobs`, `logprobs` must be set to true");
  }
  return {
    ...generationFields(body, body.max_completion_tokens ?? body.max_tokens),
    messages: body.messages.map(templateMessage),
    tools: toolChoice === "none" ? [] : (body.tools ?? []),
    addGenerationPrompt: body.add_generation_prompt ?? true,
    templateVariables: body.chat_template_kwargs ?? {},
    returnsLogprobs,
    topLogprobs: body.top_logprobs ?? 0,
  };
}

/** Text parts joined with a newline, as vLLM does for templates that take a string. */
function templateMessage(message: z.output<typeof messageSchema>, index: number): ChatMessage {
  const { tool_calls: calls, content, ...rest } = message;
  return {
    ...rest,
    content: Array.isArray(content) ? joinParts(content, index) : (content ?? ""),
    ...(calls === null || calls === undefined || calls.length === 0
      ? {}
      : { tool_calls: calls as NonNullable<ChatMessage["tool_calls"]> }),
  };
}

function joinParts(parts: readonly z.output<typeof partSchema>[], index: number): string {
  return parts
    .map((part) => {
      if (part.text === undefined) {
        throw badRequest(
          `messages.${index}.content: a part of type ${part.type} is not supported by this text-only model`,
        );
      }
      return part.text;
    })
    .join("\n");
}
