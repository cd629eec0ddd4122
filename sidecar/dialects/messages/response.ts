import { chatResponseToChunks } from "../chat/response.ts";
import type { EncodedReply } from "../dialect.ts";
import { isJson } from "../is-json.ts";
import { asArray, asRecord, asString, parseJson } from "../json-value.ts";
import { readChunk } from "../read-chunk.ts";
import { readEngineError } from "../read-engine-error.ts";
import { createToolCallTracker, type TrackedCall } from "../tool-call-tracker.ts";
import { uniqueId } from "../unique-id.ts";
import { encodeMessagesError, messagesErrorMessage } from "./error-body.ts";
import { messagesStopReason } from "./stop-reason.ts";
import type { MessagesStreamSettings } from "./stream.ts";
import { messagesUsage } from "./usage.ts";

/** A chat completion as a message. An answer that is none becomes a 502 in this dialect. */
export function encodeMessagesResponse(
  upstream: EncodedReply,
  settings: MessagesStreamSettings,
): EncodedReply {
  const root = asRecord(parseJson(upstream.body.toString("utf8")));
  const choice = asRecord(asArray(root?.["choices"])?.[0]);
  if (root === undefined || choice === undefined) {
    const error = root === undefined ? undefined : readEngineError(root);
    const message =
      error === undefined ? "the engine's answer is no completion" : messagesErrorMessage(error);
    const status = error?.status ?? 502;
    return encodeMessagesError({ status, reason: "engine-answer-unreadable", message });
  }
  const answer = readAnswer(root);
  const stop = messagesStopReason({
    finishReason: asString(choice["finish_reason"]) ?? "stop",
    stopString: answer.stopString,
    stopSequences: settings.stopSequences,
    hasToolBlock: answer.calls.length > 0,
    areArgumentsWhole: answer.calls.every(
      ({ fragments }) => fragments.length === 0 || isJson(fragments.join("")),
    ),
  });
  const head = {
    id: settings.newId("msg_"),
    type: "message",
    role: "assistant",
    model: settings.model ?? "",
  };
  const tail = { ...stop, usage: messagesUsage(asRecord(root["usage"])) };
  const content = encodeContent(answer, settings);
  // Put together as text: tool inputs keep the key order and number spelling that were sampled.
  const json = `${JSON.stringify(head).slice(0, -1)},"content":[${content.join(",")}],${JSON.stringify(tail).slice(1)}`;
  return {
    status: upstream.status,
    headers: { ...upstream.headers, "content-type": "application/json" },
    body: Buffer.from(json),
  };
}

interface Answer {
  readonly reasoning: string;
  readonly text: string;
  readonly calls: readonly TrackedCall[];
  readonly stopString: string | undefined;
}

/** Read as its own stream would be, so that both forms of an answer say the same. */
function readAnswer(root: Parameters<typeof chatResponseToChunks>[0]): Answer {
  const tracker = createToolCallTracker();
  let reasoning = "";
  let text = "";
  let stopString: string | undefined;
  for (const chunk of chatResponseToChunks(root)) {
    const parts = readChunk(chunk);
    reasoning += parts?.reasoning ?? "";
    text += parts?.content ?? "";
    stopString ??= parts?.stopString;
    for (const [position, call] of (parts?.toolCalls ?? []).entries()) tracker.add(call, position);
  }
  return { reasoning, text, calls: tracker.calls.filter(({ name }) => name !== ""), stopString };
}

function encodeContent(answer: Answer, settings: MessagesStreamSettings): string[] {
  const blocks: string[] = [];
  if (answer.reasoning !== "") {
    const signature = Buffer.from(settings.requestId).toString("base64url");
    blocks.push(JSON.stringify({ type: "thinking", thinking: answer.reasoning, signature }));
  }
  if (answer.text !== "") blocks.push(JSON.stringify({ type: "text", text: answer.text }));
  const takenIds = new Set<string>();
  for (const call of answer.calls) {
    const id = uniqueId(call.id, takenIds, () => settings.newId("toolu_"));
    const head = JSON.stringify({ type: "tool_use", id, name: call.name }).slice(0, -1);
    blocks.push(`${head},"input":${inputText(call.fragments.join(""))}}`);
  }
  return blocks;
}

/** `input` must be an object; arguments that are none are shown as an empty one. */
function inputText(text: string): string {
  return asRecord(isJson(text) ? JSON.parse(text) : undefined) === undefined ? "{}" : text;
}
