import type { ClientAsked } from "../dialect.ts";
import { asArray, asRecord, type JsonRecord } from "../json-value.ts";
import { droppedChunk, stripResponse } from "../strip-response.ts";

/** The engine's answer less what the capture added, otherwise byte for byte. */
export function encodeCompletionsResponse(upstream: Buffer, asked: ClientAsked): Buffer {
  const stripped = stripResponse(upstream, asked, false);
  return stripped === droppedChunk ? upstream : stripped;
}

/** A whole text completion as the chunks of a stream: one per choice, last the usage chunk. */
export function completionsResponseToChunks(response: JsonRecord): JsonRecord[] {
  const { choices, usage, ...base } = response;
  const chunks: JsonRecord[] = [];
  for (const [position, entry] of (asArray(choices) ?? []).entries()) {
    const choice = asRecord(entry);
    if (choice === undefined) continue;
    chunks.push({ ...base, choices: [{ index: position, ...choice }] });
  }
  if (usage !== undefined && usage !== null) chunks.push({ ...base, choices: [], usage });
  return chunks;
}
