import type { SseBlock } from "../../sse/sse-block.ts";
import { chatResponseToChunks } from "../chat/response.ts";
import type { DialectStream, RequestSettings, StreamFailure } from "../dialect.ts";
import { encodeEvent } from "../encode-event.ts";
import { isJson } from "../is-json.ts";
import { asRecord, type JsonRecord, type JsonValue, parseJson } from "../json-value.ts";
import { type ChunkParts, readChunk } from "../read-chunk.ts";
import { createToolCallTracker, type ToolCallTracker } from "../tool-call-tracker.ts";
import { type BlockWriter, createBlockWriter } from "./block-writer.ts";
import { messagesErrorMessage, messagesErrorType } from "./error-body.ts";
import { messagesStopReason } from "./stop-reason.ts";
import { messagesUsage } from "./usage.ts";

export interface MessagesStreamSettings extends Pick<RequestSettings, "newId" | "requestId"> {
  readonly model: string | null;
  readonly stopSequences: readonly string[];
}

interface State {
  readonly settings: MessagesStreamSettings;
  readonly blocks: BlockWriter;
  readonly calls: ToolCallTracker;
  readonly anomalies: string[];
  out: string[];
  outcome: DialectStream["outcome"];
  isStarted: boolean;
  finishReason: string | undefined;
  stopString: string | undefined;
  usage: JsonRecord | undefined;
}

const PING = encodeEvent({ type: "ping" });

/** Chat completion chunks as the events of the Messages API. */
export function createMessagesStream(settings: MessagesStreamSettings): DialectStream {
  const state = newState(settings);
  const flush = () => Buffer.from(state.out.splice(0).join(""));
  const fail = (type: string, message: string) => {
    failStream(state, type, message);
    return flush();
  };
  return {
    push(block) {
      pushBlock(state, block);
      return flush();
    },
    pushWhole(response) {
      const root = asRecord(parseJson(response.toString("utf8")));
      if (root === undefined) return fail("api_error", "the engine's answer is not JSON");
      state.usage = asRecord(root["usage"]);
      if (!Array.isArray(root["choices"])) pushChunk(state, root);
      for (const chunk of chatResponseToChunks(root)) pushChunk(state, chunk);
      closeStream(state);
      return flush();
    },
    end() {
      closeStream(state);
      return flush();
    },
    fail: (failure) => fail(...describeFailure(failure)),
    keepAlive: () => Buffer.from(state.outcome === "open" ? PING : ""),
    get outcome() {
      return state.outcome;
    },
    get isAnswered() {
      return state.outcome === "completed";
    },
    get anomalies() {
      return [...state.anomalies, ...state.blocks.anomalies];
    },
  };
}

function newState(settings: MessagesStreamSettings): State {
  const signature = Buffer.from(settings.requestId).toString("base64url");
  const blocks = createBlockWriter({
    emit: (events) => state.out.push(events),
    newId: settings.newId,
    signature,
  });
  const state: State = {
    settings,
    blocks,
    calls: createToolCallTracker(),
    anomalies: [],
    out: [],
    outcome: "open",
    isStarted: false,
    finishReason: undefined,
    stopString: undefined,
    usage: undefined,
  };
  return state;
}

function pushBlock(state: State, block: SseBlock): void {
  if (block.data === null || block.data.length === 0 || state.outcome !== "open") return;
  if (block.isDone) closeStream(state);
  else pushChunk(state, block.json());
}

function pushChunk(state: State, value: JsonValue | undefined): void {
  const parts = readChunk(value);
  if (parts === undefined || state.outcome !== "open") return;
  if (parts.error !== undefined) {
    const type = messagesErrorType(parts.error.status ?? 500);
    failStream(state, type, messagesErrorMessage(parts.error));
    return;
  }
  state.usage = parts.usage ?? state.usage;
  startMessage(state);
  writeParts(state, parts);
  state.finishReason ??= parts.finishReason;
  state.stopString ??= parts.stopString;
  if (parts.isTail && state.finishReason !== undefined) closeStream(state);
}

function startMessage(state: State): void {
  if (state.isStarted) return;
  state.isStarted = true;
  const usage = { ...messagesUsage(state.usage), output_tokens: 0 };
  const message = {
    id: state.settings.newId("msg_"),
    type: "message",
    role: "assistant",
    model: state.settings.model ?? "",
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage,
  };
  state.out.push(encodeEvent({ type: "message_start", message }), PING);
}

function writeParts(state: State, parts: ChunkParts): void {
  const { blocks, calls } = state;
  if (parts.reasoning !== "") blocks.write({ kind: "thinking", text: parts.reasoning });
  if (parts.content !== "") blocks.write({ kind: "text", text: parts.content });
  for (const [position, fragment] of parts.toolCalls.entries()) {
    const call = calls.add(fragment, position)?.call;
    // A block's start carries the name: until there is one, the arguments wait in the call.
    if (call !== undefined && call.name !== "") blocks.write({ kind: "tool", call });
  }
}

/** The end of a stream: with a finish reason an answer, without one a failure. */
function closeStream(state: State): void {
  if (state.outcome !== "open") return;
  if (state.finishReason === undefined) {
    failStream(state, "api_error", "the engine ended its stream without a finish reason");
    return;
  }
  startMessage(state);
  for (const call of state.calls.calls) {
    if (call.name === "") state.anomalies.push("tool-call-without-name");
  }
  state.blocks.finish();
  const delta = messagesStopReason({
    finishReason: state.finishReason,
    stopString: state.stopString,
    stopSequences: state.settings.stopSequences,
    hasToolBlock: state.blocks.hasToolBlock,
    areArgumentsWhole: state.calls.calls.every(
      ({ fragments }) => fragments.length === 0 || isJson(fragments.join("")),
    ),
  });
  const usage = messagesUsage(state.usage);
  state.out.push(
    encodeEvent({ type: "message_delta", delta: { ...delta }, usage }),
    encodeEvent({ type: "message_stop" }),
  );
  state.outcome = "completed";
}

function failStream(state: State, type: string, message: string): void {
  if (state.outcome !== "open") return;
  state.outcome = "failed";
  state.out.push(encodeEvent({ type: "error", error: { type, message } }));
}

function describeFailure(failure: StreamFailure): [type: string, message: string] {
  if (failure.kind === "reset") return ["api_error", failure.message];
  const { status, message, reason } = failure.error;
  return [messagesErrorType(status), messagesErrorMessage({ status, message, code: reason })];
}
