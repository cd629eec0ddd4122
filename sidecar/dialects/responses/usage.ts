import { asNumber, asRecord, type JsonRecord } from "../json-value.ts";

/** Token counts as the Responses API has them. Every count is a number: Codex fails on a null. */
export function responsesUsage(usage: JsonRecord | undefined): JsonRecord {
  const inputTokens = asNumber(usage?.["prompt_tokens"]) ?? 0;
  const outputTokens = asNumber(usage?.["completion_tokens"]) ?? 0;
  const prompt = asRecord(usage?.["prompt_tokens_details"]);
  const completion = asRecord(usage?.["completion_tokens_details"]);
  return {
    input_tokens: inputTokens,
    input_tokens_details: { cached_tokens: asNumber(prompt?.["cached_tokens"]) ?? 0 },
    output_tokens: outputTokens,
    output_tokens_details: { reasoning_tokens: asNumber(completion?.["reasoning_tokens"]) ?? 0 },
    total_tokens: inputTokens + outputTokens,
  };
}
