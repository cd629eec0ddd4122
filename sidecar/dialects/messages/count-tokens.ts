import type { EncodedReply, RequestSettings } from "../dialect.ts";
import { encodeReply } from "../encode-reply.ts";
import { asNumber, asRecord, asText, parseJson } from "../json-value.ts";
import { stringifyJson, tooDeep } from "../stringify-json.ts";
import { encodeMessagesError } from "./error-body.ts";
import { translateMessages } from "./request.ts";
import { toolInputTexts } from "./tool-input-texts.ts";

export const countTokensPath = "/v1/messages/count_tokens";
/** vLLM's tokenizer route, from the engine's root: renders the chat template and counts. */
export const tokenizePath = "/tokenize";

const promptMembers = ["model", "messages", "tools", "chat_template_kwargs"] as const;

/** A `count_tokens` request as one for the engine's `/tokenize`. */
export function planCountTokens(
  body: Buffer,
  settings: RequestSettings,
): { readonly upstreamPath: string; readonly upstreamBody: Buffer } | EncodedReply {
  const request = asRecord(parseJson(body.toString("utf8")));
  if (request === undefined) {
    const message = "the request body is not a JSON object";
    return encodeMessagesError({ status: 400, reason: "body-not-json", message });
  }
  const translated = translateMessages(request, toolInputTexts(body), settings, new Set());
  const prompt = Object.fromEntries(
    promptMembers.flatMap((key) => (translated[key] === undefined ? [] : [[key, translated[key]]])),
  );
  const model = settings.model ?? asText(request["model"]);
  const upstream = {
    ...prompt,
    ...(model === undefined ? {} : { model }),
    add_generation_prompt: true,
  };
  const text = stringifyJson(upstream);
  if (text === undefined) return encodeMessagesError(tooDeep);
  return { upstreamPath: tokenizePath, upstreamBody: Buffer.from(text) };
}

/** `{count}` or `{tokens}` of the engine as `{input_tokens}`. */
export function encodeCountTokens(upstream: EncodedReply): EncodedReply {
  const root = asRecord(parseJson(upstream.body.toString("utf8")));
  const tokens = root?.["tokens"];
  const count = asNumber(root?.["count"]) ?? (Array.isArray(tokens) ? tokens.length : undefined);
  if (count !== undefined) return encodeReply(upstream.status, { input_tokens: count });
  const message = "the engine's answer has no token count";
  return encodeMessagesError({ status: 502, reason: "engine-answer-unreadable", message });
}
