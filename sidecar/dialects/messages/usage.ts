import { asNumber, asRecord, type JsonRecord } from "../json-value.ts";

/** Token counts as the Messages API has them: the buckets do not overlap, their sum is the prompt. */
export function messagesUsage(usage: JsonRecord | undefined): JsonRecord {
  const promptTokens = asNumber(usage?.["prompt_tokens"]) ?? 0;
  const details = asRecord(usage?.["prompt_tokens_details"]);
  const cached = Math.min(asNumber(details?.["cached_tokens"]) ?? 0, promptTokens);
  return {
    input_tokens: promptTokens - cached,
    output_tokens: asNumber(usage?.["completion_tokens"]) ?? 0,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
  };
}
