import type { ChunkScan } from "../chunk-scan.ts";
import type { ClientAsked } from "../dialect.ts";
import { asArray, asRecord, asText, type JsonRecord, type JsonValue } from "../json-value.ts";
import { droppedChunk, stripResponse } from "../strip-response.ts";

/** The engine's answer less what the capture added, otherwise byte for byte. */
export function encodeChatResponse(
  upstream: Buffer,
  asked: ClientAsked,
  onScan?: (scan: ChunkScan) => void,
): Buffer {
  const stripped = stripResponse(upstream, asked, false, onScan);
  return stripped === droppedChunk ? upstream : stripped;
}

/**
 * A whole chat completion as the chunks of a stream: for each choice the role, then reasoning,
 * content and tool calls, then the finish; last the usage chunk.
 */
export function chatResponseToChunks(response: JsonRecord): JsonRecord[] {
  const { choices, usage, object: _object, ...rest } = response;
  const base = { ...rest, object: "chat.completion.chunk" };
  const chunks: JsonRecord[] = [];
  for (const [position, entry] of (asArray(choices) ?? []).entries()) {
    const choice = asRecord(entry);
    if (choice === undefined) continue;
    const index = choice["index"] ?? position;
    for (const part of choiceDeltas(choice)) {
      chunks.push({ ...base, choices: [{ index, finish_reason: null, ...part }] });
    }
    const { message: _message, logprobs: _logprobs, ...finish } = choice;
    const tail = { ...finish, index, delta: {}, finish_reason: choice["finish_reason"] ?? null };
    chunks.push({ ...base, choices: [tail] });
  }
  if (usage !== undefined && usage !== null) chunks.push({ ...base, choices: [], usage });
  return chunks;
}

type DeltaPart = { readonly delta: JsonRecord; readonly logprobs: JsonValue };

function choiceDeltas(choice: JsonRecord): DeltaPart[] {
  const message = asRecord(choice["message"]) ?? {};
  const logprobs = choice["logprobs"] ?? null;
  const parts: DeltaPart[] = [{ delta: { role: "assistant", content: "" }, logprobs: null }];
  for (const key of ["reasoning_content", "reasoning", "refusal"] as const) {
    const text = asText(message[key]);
    if (text !== undefined) parts.push({ delta: { [key]: text }, logprobs: null });
  }
  const content = contentText(message["content"]);
  if (content !== "") parts.push({ delta: { content }, logprobs: null });
  const calls = asArray(message["tool_calls"]) ?? [];
  if (calls.length > 0) {
    const indexed = calls.map((call, index) => ({ index, ...asRecord(call) }));
    parts.push({ delta: { tool_calls: indexed }, logprobs: null });
  }
  // The engine reports logprobs for the response as a whole: they go with its last part.
  const last = parts.at(-1);
  if (last !== undefined) parts[parts.length - 1] = { ...last, logprobs };
  return parts;
}

function contentText(value: JsonValue | undefined): string {
  const parts = asArray(value);
  if (parts === undefined) return asText(value) ?? "";
  return parts.map((part) => asText(asRecord(part)?.["text"]) ?? "").join("");
}
