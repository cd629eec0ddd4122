import {
  asArray,
  asNumber,
  asRecord,
  asText,
  type JsonRecord,
  type JsonValue,
} from "./json-value.ts";
import { type EngineError, readEngineError } from "./read-engine-error.ts";

/** What a chat completion chunk says about its first choice, in the order in which it counts. */
export interface ChunkParts {
  readonly error: EngineError | undefined;
  readonly usage: JsonRecord | undefined;
  readonly reasoning: string;
  readonly content: string;
  readonly toolCalls: readonly JsonValue[];
  readonly finishReason: string | undefined;
  /** The stop string that ended the response, where the engine names it. */
  readonly stopString: string | undefined;
  /** `choices: []`: the chunk that comes after all others and carries the usage. */
  readonly isTail: boolean;
}

/** Undefined for what is no chunk at all (the capture notes such an event as unreadable). */
export function readChunk(value: JsonValue | undefined): ChunkParts | undefined {
  const root = asRecord(value);
  if (root === undefined) return undefined;
  const choices = asArray(root["choices"]);
  const error = readEngineError(root);
  if (choices === undefined && error === undefined) return undefined;
  const choice = firstChoice(choices);
  const delta = asRecord(choice?.["delta"]);
  return {
    error,
    usage: asRecord(root["usage"]),
    reasoning: asText(delta?.["reasoning_content"]) ?? asText(delta?.["reasoning"]) ?? "",
    content: asText(delta?.["content"]) ?? "",
    toolCalls: asArray(delta?.["tool_calls"]) ?? [],
    finishReason: asText(choice?.["finish_reason"]),
    stopString: asText(choice?.["stop_reason"]) ?? asText(choice?.["matched_stop"]),
    isTail: choices?.length === 0,
  };
}

/** Choices beyond the first are captured, not shown: the other dialects have one answer. */
function firstChoice(choices: readonly JsonValue[] | undefined): JsonRecord | undefined {
  for (const [position, entry] of (choices ?? []).entries()) {
    const choice = asRecord(entry);
    if (choice !== undefined && (asNumber(choice["index"]) ?? position) === 0) return choice;
  }
  return undefined;
}
