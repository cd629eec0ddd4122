import {
  asArray,
  asRecord,
  asString,
  type JsonRecord,
  type JsonValue,
} from "../../sidecar/dialects/json-value.ts";

/** Words with the whitespace before them; together they are the text again. */
export function pieces(text: string): string[] {
  return text.match(/\s*\S{1,8}|\s+/g) ?? [];
}

/** One id per piece, from its text alone (FNV-1a), in 100 … 90,099. */
export function tokenId(piece: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(piece)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return (hash % 90_000) + 100;
}

/**
 * Ids of a request's prompt: a text or ids as they are, messages as `<role>`, pieces, end. The
 * response's own ids (pieces, then the end id 2) are what the next turn renders for it, so that
 * prompts extend each other exactly.
 */
export function renderPrompt(request: JsonRecord): number[] {
  const prompt = request["prompt"];
  if (typeof prompt === "string") return pieces(prompt).map(tokenId);
  if (prompt !== undefined) return (asArray(prompt) ?? []).filter((id) => typeof id === "number");
  const ids: number[] = [];
  for (const tool of asArray(request["tools"]) ?? []) ids.push(tokenId(JSON.stringify(tool)));
  for (const entry of asArray(request["messages"]) ?? []) {
    const message = asRecord(entry) ?? {};
    ids.push(tokenId(`<${asString(message["role"]) ?? "?"}>`));
    ids.push(...pieces(asString(message["reasoning_content"]) ?? "").map(tokenId));
    ids.push(...pieces(contentText(message["content"])).map(tokenId));
    for (const call of asArray(message["tool_calls"]) ?? []) {
      const called = asRecord(asRecord(call)?.["function"]);
      ids.push(tokenId(`<call>${asString(called?.["name"]) ?? ""}`));
      ids.push(...pieces(asString(called?.["arguments"]) ?? "").map(tokenId));
    }
    ids.push(2);
  }
  ids.push(tokenId("<assistant>"));
  return ids;
}

function contentText(content: JsonValue | undefined): string {
  if (typeof content === "string") return content;
  return (asArray(content) ?? []).map((part) => asString(asRecord(part)?.["text"]) ?? "").join("");
}
