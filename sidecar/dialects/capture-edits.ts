import type { ClientAsked, EngineProfile } from "./dialect.ts";
import type { JsonRecord, JsonValue } from "./json-value.ts";
import type { MemberEdits } from "./splice-request.ts";

/** Members that make an engine say which tokens it saw and sampled, and how likely they were. */
export function captureMembers(
  engine: EngineProfile,
  api: "chat" | "completions",
  request: JsonRecord,
): Record<string, JsonValue> {
  const members: Record<string, JsonValue> = { return_token_ids: true };
  if (engine.kind === "sglang") {
    members["return_prompt_token_ids"] = true;
    members["return_meta_info"] = true;
  }
  if (api === "chat") {
    members["logprobs"] = true;
    // vLLM gives no logprobs on some paths when this is absent.
    if (request["logprobs"] !== true || typeof request["top_logprobs"] !== "number") {
      members["top_logprobs"] = 0;
    }
  } else if (typeof request["logprobs"] !== "number") {
    // SGLang takes 0 for "none".
    members["logprobs"] = engine.kind === "sglang" ? 1 : 0;
  }
  return members;
}

/** `stream` and `stream_options` of a request whose harness wants a stream. */
export function streamEdits(upstreamStreams: boolean): MemberEdits {
  return upstreamStreams
    ? { stream_options: { merge: { include_usage: { set: true } } } }
    : { stream: { set: false }, stream_options: { remove: true } };
}

/** `request` holds the top-level members that matter here (see `readMembers`). */
export function readClientAsked(request: JsonRecord, api: "chat" | "completions"): ClientAsked {
  const streamOptions = request["stream_options"];
  const logprobs = request["logprobs"];
  return {
    logprobs: api === "chat" ? logprobs === true : typeof logprobs === "number",
    tokenIds: request["return_token_ids"] === true,
    usage:
      typeof streamOptions === "object" &&
      streamOptions !== null &&
      (streamOptions as JsonRecord)["include_usage"] === true,
  };
}
