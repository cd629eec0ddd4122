import type { SseBlock } from "../../sse/sse-block.ts";
import { chatResponseToChunks } from "../chat/response.ts";
import type { DialectStream, StreamFailure } from "../dialect.ts";
import { asRecord, type JsonRecord, type JsonValue, parseJson } from "../json-value.ts";
import { readChunk } from "../read-chunk.ts";
import { describeEngineError, describeOwnError, type ResponsesError } from "./error-body.ts";
import {
  addParts,
  failResponse,
  finishResponse,
  newResponseBuilder,
  type ResponseBuilder,
  type ResponseBuilderSettings,
  repeatInProgress,
  startResponse,
} from "./response-builder.ts";

export interface ResponsesStreamState {
  readonly builder: ResponseBuilder;
  outcome: DialectStream["outcome"];
  finishReason: string | undefined;
  usage: JsonRecord | undefined;
  /** The whole response, once it is completed. */
  response: JsonRecord | undefined;
  error: ResponsesError | undefined;
}

/** Chat completion chunks as the events of the Responses API. */
export function createResponsesStream(settings: ResponseBuilderSettings): DialectStream {
  const out: string[] = [];
  const state = newResponsesState(settings, (event) => out.push(event));
  const flush = () => Buffer.from(out.splice(0).join(""));
  return {
    push(block) {
      pushBlock(state, block);
      return flush();
    },
    pushWhole(response) {
      pushWholeResponse(state, response);
      return flush();
    },
    end() {
      closeStream(state);
      return flush();
    },
    fail(failure) {
      failStream(state, describeFailure(failure));
      return flush();
    },
    keepAlive() {
      if (state.outcome === "open") repeatInProgress(state.builder);
      return flush();
    },
    get outcome() {
      return state.outcome;
    },
    get isAnswered() {
      return state.outcome === "completed";
    },
    get anomalies() {
      const isUnnamed = state.builder.calls.calls.some((call) => call.name === "");
      return isUnnamed && state.outcome !== "open" ? ["tool-call-without-name"] : [];
    },
  };
}

export function newResponsesState(
  settings: ResponseBuilderSettings,
  emit: (event: string) => void,
): ResponsesStreamState {
  return {
    builder: newResponseBuilder(settings, emit),
    outcome: "open",
    finishReason: undefined,
    usage: undefined,
    response: undefined,
    error: undefined,
  };
}

/** A whole answer of the engine, as the chunks that a streaming engine would have sent. */
export function pushWholeResponse(state: ResponsesStreamState, response: Buffer): void {
  const root = asRecord(parseJson(response.toString("utf8")));
  if (root === undefined) {
    failStream(state, { code: "server_error", message: "the engine's answer is not JSON" });
    return;
  }
  if (!Array.isArray(root["choices"])) pushChunk(state, root);
  for (const chunk of chatResponseToChunks(root)) pushChunk(state, chunk);
  closeStream(state);
}

function pushBlock(state: ResponsesStreamState, block: SseBlock): void {
  if (block.data === null || block.data.length === 0 || state.outcome !== "open") return;
  if (block.isDone) closeStream(state);
  else pushChunk(state, block.json());
}

function pushChunk(state: ResponsesStreamState, value: JsonValue | undefined): void {
  const parts = readChunk(value);
  if (parts === undefined || state.outcome !== "open") return;
  if (parts.error !== undefined) {
    failStream(state, describeEngineError(parts.error, parts.error.status ?? 500));
    return;
  }
  state.usage = parts.usage ?? state.usage;
  startResponse(state.builder);
  addParts(state.builder, parts);
  state.finishReason ??= parts.finishReason;
  if (parts.isTail && state.finishReason !== undefined) closeStream(state);
}

/** The end of a stream: with a finish reason an answer, without one a failure. */
function closeStream(state: ResponsesStreamState): void {
  if (state.outcome !== "open") return;
  if (state.finishReason === undefined) {
    const message = "the engine ended its stream without a finish reason";
    failStream(state, { code: "server_error", message });
    return;
  }
  startResponse(state.builder);
  state.response = finishResponse(state.builder, state.finishReason, state.usage);
  state.outcome = "completed";
}

function failStream(state: ResponsesStreamState, error: ResponsesError): void {
  if (state.outcome !== "open") return;
  state.outcome = "failed";
  state.error = error;
  failResponse(state.builder, error);
}

function describeFailure(failure: StreamFailure): ResponsesError {
  return failure.kind === "error"
    ? describeOwnError(failure.error)
    : { code: "server_error", message: failure.message };
}
