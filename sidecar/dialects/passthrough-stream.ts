import type { SseBlock } from "../sse/sse-block.ts";
import { applyCuts } from "./byte-cuts.ts";
import type { ClientAsked, DialectError, DialectStream, StreamFailure } from "./dialect.ts";
import { skipWhitespace } from "./json-scan.ts";
import { asRecord, type JsonRecord, parseJson } from "./json-value.ts";
import { stringifyJson } from "./stringify-json.ts";
import { droppedChunk, stripCuts, stripResponse } from "./strip-response.ts";

export interface PassthroughStreamSettings {
  readonly asked: ClientAsked;
  /** False: nothing was added, so nothing is looked for. */
  readonly captured: boolean;
  readonly keepAlive: "none" | "comment";
  /** A whole answer as the chunks that a streaming engine would have sent. */
  readonly toChunks: (response: JsonRecord) => readonly JsonRecord[];
  readonly encodeError: (error: DialectError) => unknown;
}

export const NO_BYTES = Buffer.alloc(0);
const DONE = "data: [DONE]\n\n";

/**
 * Relays an event stream in its own dialect: each block's bytes as they came, less what the
 * capture added. JSON is not parsed on this path; the capture does that after the write.
 */
export function createPassthroughStream(settings: PassthroughStreamSettings): DialectStream {
  let outcome: DialectStream["outcome"] = "open";
  let isAnswered = false;
  let hasFinish = false;
  let isWhole = false;

  function fail(failure: StreamFailure): Buffer {
    if (outcome !== "open") return NO_BYTES;
    outcome = "failed";
    // A reset is passed on as a reset: the harness sees what it would have seen without us.
    if (failure.kind === "reset" && !isWhole) return NO_BYTES;
    const error =
      failure.kind === "error"
        ? failure.error
        : { status: 502, reason: "engine-reset", message: failure.message };
    return Buffer.from(`data: ${JSON.stringify(settings.encodeError(error))}\n\n`);
  }

  return {
    push(block) {
      if (outcome !== "open") return NO_BYTES;
      if (!block.hasData) return block.raw;
      if (block.isDone) {
        isAnswered = true;
        return block.raw;
      }
      const bytes = settings.captured ? stripBlock(block, settings.asked) : block.raw;
      hasFinish ||=
        block.scan === undefined
          ? mentionsFinish(block.raw)
          : block.scan.choices.some((choice) => choice.isFinished);
      return bytes;
    },
    pushWhole(response) {
      if (outcome !== "open") return NO_BYTES;
      isWhole = true;
      const root = asRecord(parseJson(response.toString("utf8")));
      if (root === undefined || !Array.isArray(root["choices"])) {
        return fail({ kind: "reset", message: "the engine's answer is no completion" });
      }
      const chunks: string[] = [];
      for (const chunk of settings.toChunks(root)) {
        const text = stringifyJson(chunk);
        if (text === undefined) {
          return fail({ kind: "reset", message: "the engine's answer is nested too deeply" });
        }
        const stripped = stripResponse(Buffer.from(text), settings.asked, true);
        if (stripped !== droppedChunk) chunks.push(`data: ${stripped.toString("utf8")}\n\n`);
      }
      outcome = "completed";
      isAnswered = true;
      return Buffer.from(chunks.join("") + DONE);
    },
    end() {
      if (outcome === "open") {
        // Without a finish and without [DONE] the answer is cut off, however politely the
        // connection was closed; some harnesses ask again for ever after a clean end.
        isAnswered ||= hasFinish;
        outcome = isAnswered ? "completed" : "failed";
      }
      return NO_BYTES;
    },
    fail,
    keepAlive: () =>
      settings.keepAlive === "comment" && outcome === "open"
        ? Buffer.from(": keep-alive\n\n")
        : NO_BYTES,
    get outcome() {
      return outcome;
    },
    get isAnswered() {
      return isAnswered;
    },
    anomalies: [],
  };
}

/** A block with the capture's members removed; empty when the block was only there for them. */
export function stripBlock(block: SseBlock, asked: ClientAsked): Buffer {
  const { raw, dataStart } = block;
  if (dataStart !== -1) {
    const cuts = stripCuts(raw, dataStart, asked, true, (scan) => {
      block.scan = scan;
    });
    return cuts === droppedChunk ? NO_BYTES : applyCuts(raw, cuts);
  }
  const { data } = block;
  if (data === null) return raw;
  const stripped = stripResponse(data, asked, true);
  if (stripped === droppedChunk) return NO_BYTES;
  return stripped === data ? raw : rebuildBlock(block, stripped);
}

const dataLine = /^(?:\u00ef\u00bb\u00bf)?data(?::|[\r\n]|$)/;

/**
 * Several data lines: the JSON is written on as many lines as it still has, where the first of them
 * was; other fields and comments stay as they came. Latin-1 is every byte as it is.
 */
function rebuildBlock(block: SseBlock, data: Buffer): Buffer {
  const lines = block.raw.toString("latin1").split(/(?<=\r\n|\n|\r(?!\n))/);
  let isWritten = false;
  const rebuilt = lines.map((line) => {
    if (!dataLine.test(line)) return line;
    if (isWritten) return "";
    isWritten = true;
    const end = /[\r\n]*$/.exec(line)?.[0] ?? "";
    const written = data.toString("latin1").split("\n");
    return written.map((text) => `data: ${text}${end}`).join("");
  });
  return Buffer.from(rebuilt.join(""), "latin1");
}

const FINISH = Buffer.from('"finish_reason"');
const COLON = 0x3a;
const QUOTE = 0x22;

/** A finish reason other than null. Inside a JSON string the quotes would be escaped. */
function mentionsFinish(bytes: Buffer): boolean {
  for (let at = bytes.indexOf(FINISH); at !== -1; at = bytes.indexOf(FINISH, at + 1)) {
    const colon = skipWhitespace(bytes, at + FINISH.length);
    const value = skipWhitespace(bytes, colon + 1);
    if (bytes[colon] === COLON && bytes[value] === QUOTE && bytes[value + 1] !== QUOTE) return true;
  }
  return false;
}
