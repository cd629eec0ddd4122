import type { EncodedReply, RequestSettings } from "../dialect.ts";
import {
  type ChatBody,
  defaultTranslation,
  type FinishedTranslation,
  finishTranslation,
} from "../finish-translation.ts";
import { asArray, asNumber, asRecord, asText, type JsonRecord, parseJson } from "../json-value.ts";
import { tooDeep } from "../stringify-json.ts";
import { encodeResponsesError } from "./error-body.ts";
import { translateItems } from "./items.ts";
import { type ToolTargets, translateTools } from "./tools.ts";

export const responsesPath = "/v1/responses";

export interface ResponsesPlan extends FinishedTranslation {
  readonly model: string | null;
  readonly targets: ToolTargets;
  /** The harness replays reasoning through `encrypted_content`. */
  readonly sealsReasoning: boolean;
  readonly parallelToolCalls: boolean;
  readonly dropped: readonly string[];
}

const knownMembers = new Set([
  "model",
  "instructions",
  "input",
  "tools",
  "tool_choice",
  "parallel_tool_calls",
  "max_output_tokens",
  "temperature",
  "top_p",
  "text",
  "reasoning",
  "stream",
  "previous_response_id",
]);

/** A Responses request as a chat completions request. Refused: no JSON object, or kept state. */
export function planResponsesRequest(
  body: Buffer,
  settings: RequestSettings,
): ResponsesPlan | EncodedReply {
  const request = asRecord(parseJson(body.toString("utf8")));
  if (request === undefined) {
    const message = "the request body is not a JSON object";
    return encodeResponsesError({ status: 400, reason: "body-not-json", message });
  }
  if (asText(request["previous_response_id"]) !== undefined) {
    const message =
      "previous_response_id is not supported: no responses are stored; send the input";
    return encodeResponsesError({ status: 400, reason: "unsupported_parameter", message });
  }
  const dropped = new Set(Object.keys(request).filter((key) => !knownMembers.has(key)));
  const tools = translateTools(request, dropped);
  const model = asText(request["model"]) ?? null;
  const chat: ChatBody = {
    ...(model === null ? {} : { model }),
    messages: translateMessages(request, settings, dropped),
    ...tools.body,
    ...translateSampling(request, settings, dropped),
  };
  const includes = asArray(request["include"]) ?? [];
  const finished = finishTranslation(chat, request["stream"] === true, settings);
  if (finished === undefined) return encodeResponsesError(tooDeep);
  return {
    ...finished,
    model,
    targets: tools.targets,
    sealsReasoning: includes.includes("reasoning.encrypted_content"),
    parallelToolCalls: request["parallel_tool_calls"] !== false,
    dropped: [...dropped],
  };
}

function translateMessages(
  request: JsonRecord,
  settings: RequestSettings,
  dropped: Set<string>,
): JsonRecord[] {
  const translation = { ...defaultTranslation, ...settings.translation };
  const instructions = asText(request["instructions"]);
  const leading = instructions === undefined ? [] : [{ role: "system", content: instructions }];
  const { developerRole, midConversationSystemRole } = translation;
  const itemSettings = { developerRole, midConversationSystemRole, dropped };
  return translateItems(request["input"], leading, itemSettings);
}

function translateSampling(
  request: JsonRecord,
  settings: RequestSettings,
  dropped: Set<string>,
): ChatBody {
  const body: ChatBody = {};
  const maxTokens = asNumber(request["max_output_tokens"]);
  const member = settings.translation?.maxTokensMember ?? "max_completion_tokens";
  if (maxTokens !== undefined) body[member] = maxTokens;
  for (const key of ["temperature", "top_p"]) {
    const value = asNumber(request[key]);
    if (value !== undefined) body[key] = value;
  }
  const reasoning = asRecord(request["reasoning"]) ?? {};
  const effort = asText(reasoning["effort"]);
  if (effort !== undefined) body["reasoning_effort"] = effort;
  for (const key of Object.keys(reasoning)) if (key !== "effort") dropped.add(`reasoning.${key}`);
  return { ...body, ...translateFormat(asRecord(request["text"]) ?? {}, dropped) };
}

function translateFormat(text: JsonRecord, dropped: Set<string>): ChatBody {
  for (const key of Object.keys(text)) if (key !== "format") dropped.add(`text.${key}`);
  const format = asRecord(text["format"]);
  switch (asText(format?.["type"]) ?? "text") {
    case "text":
      return {};
    case "json_object":
      return { response_format: { type: "json_object" } };
    case "json_schema": {
      const { type: _type, ...schema } = format ?? {};
      return { response_format: { type: "json_schema", json_schema: schema } };
    }
    default:
      dropped.add("text.format");
      return {};
  }
}
