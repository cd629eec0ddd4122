import type { EncodedReply, RequestSettings } from "../dialect.ts";
import {
  type ChatBody,
  defaultTranslation,
  type FinishedTranslation,
  finishTranslation,
} from "../finish-translation.ts";
import {
  asArray,
  asNumber,
  asRecord,
  asString,
  asText,
  type JsonRecord,
  parseJson,
} from "../json-value.ts";
import { tooDeep } from "../stringify-json.ts";
import { encodeMessagesError } from "./error-body.ts";
import { toolInputTexts } from "./tool-input-texts.ts";
import { translateTools } from "./tools.ts";
import { systemText, translateTurn } from "./turns.ts";

export const messagesPath = "/v1/messages";

export interface MessagesPlan extends FinishedTranslation {
  readonly model: string | null;
  readonly stopSequences: readonly string[];
  readonly dropped: readonly string[];
}

const knownMembers = new Set([
  "model",
  "messages",
  "system",
  "tools",
  "tool_choice",
  "max_tokens",
  "stop_sequences",
  "temperature",
  "top_p",
  "top_k",
  "stream",
  "thinking",
  "output_config",
]);

/** A Messages request as a chat completions request; a body that is no object is refused. */
export function planMessagesRequest(
  body: Buffer,
  settings: RequestSettings,
): MessagesPlan | EncodedReply {
  const request = asRecord(parseJson(body.toString("utf8")));
  if (request === undefined) {
    const message = "the request body is not a JSON object";
    return encodeMessagesError({ status: 400, reason: "body-not-json", message });
  }
  const dropped = new Set(Object.keys(request).filter((key) => !knownMembers.has(key)));
  const translated = translateMessages(request, toolInputTexts(body), settings, dropped);
  const finished = finishTranslation(translated, request["stream"] === true, settings);
  if (finished === undefined) return encodeMessagesError(tooDeep);
  return {
    ...finished,
    model: asText(request["model"]) ?? null,
    stopSequences: readStopSequences(request),
    dropped: [...dropped],
  };
}

/** The part that `count_tokens` needs as well: everything that becomes part of the prompt. */
export function translateMessages(
  request: JsonRecord,
  inputTexts: ReadonlyMap<string, string>,
  settings: RequestSettings,
  dropped: Set<string>,
): ChatBody {
  const translation = { ...defaultTranslation, ...settings.translation };
  const messages: JsonRecord[] = [];
  const system = systemText(request["system"], "system", dropped);
  if (system !== "") messages.push({ role: "system", content: system });
  for (const [position, entry] of (asArray(request["messages"]) ?? []).entries()) {
    const message = asRecord(entry) ?? {};
    const role = translation.midConversationSystemRole;
    const context = { midConversationSystemRole: role, inputTexts, dropped };
    messages.push(...translateTurn(message, position, context));
  }
  const model = asText(request["model"]);
  return {
    ...(model === undefined ? {} : { model }),
    messages,
    ...translateTools(request, dropped),
    ...translateSampling(request, translation.maxTokensMember ?? "max_tokens"),
    ...translateReasoning(request, translation.reasoningMember, dropped),
    ...translatePrefill(messages),
  };
}

function translateSampling(
  request: JsonRecord,
  maxTokensMember: "max_tokens" | "max_completion_tokens",
): ChatBody {
  const body: ChatBody = {};
  const maxTokens = asNumber(request["max_tokens"]);
  if (maxTokens !== undefined) body[maxTokensMember] = maxTokens;
  const stop = readStopSequences(request);
  if (stop.length > 0) body["stop"] = stop;
  for (const key of ["temperature", "top_p", "top_k"]) {
    const value = asNumber(request[key]);
    if (value !== undefined) body[key] = value;
  }
  return body;
}

function translateReasoning(
  request: JsonRecord,
  member: "drop" | "enable-thinking" | "reasoning-effort",
  dropped: Set<string>,
): ChatBody {
  const thinking = asRecord(request["thinking"]);
  const output = asRecord(request["output_config"]);
  const effort = asText(output?.["effort"]);
  const body: ChatBody = {};
  if (thinking !== undefined && member === "enable-thinking") {
    body["chat_template_kwargs"] = { enable_thinking: thinking["type"] !== "disabled" };
  } else if (thinking !== undefined) dropped.add("thinking");
  if (effort !== undefined && member === "reasoning-effort") body["reasoning_effort"] = effort;
  else if (effort !== undefined) dropped.add("output_config.effort");
  const format = asRecord(output?.["format"]);
  const schema = asRecord(format?.["schema"]);
  if (format?.["type"] === "json_schema" && schema !== undefined) {
    body["response_format"] = { type: "json_schema", json_schema: { name: "output", schema } };
  }
  for (const key of Object.keys(output ?? {})) {
    if (key !== "effort" && (key !== "format" || schema === undefined)) {
      dropped.add(`output_config.${key}`);
    }
  }
  return body;
}

/** A trailing assistant text is a prefill: the answer goes on from it instead of starting anew. */
function translatePrefill(messages: readonly JsonRecord[]): ChatBody {
  const last = messages.at(-1);
  const isPrefill = last?.["role"] === "assistant" && last["tool_calls"] === undefined;
  return isPrefill ? { add_generation_prompt: false, continue_final_message: true } : {};
}

function readStopSequences(request: JsonRecord): string[] {
  return (asArray(request["stop_sequences"]) ?? []).flatMap((stop) => asString(stop) ?? []);
}
