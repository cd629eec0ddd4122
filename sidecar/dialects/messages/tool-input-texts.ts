import { lastMember, scanArray, scanObject } from "../json-scan.ts";

/**
 * The JSON text of every `tool_use` input by `message.block` position, without the whitespace
 * between tokens but with its key order and number spelling: `{"10":1,"2":0.10}` stays that,
 * where parsing and printing would give `{"2":0.1,"10":1}` and the engine another prompt.
 */
export function toolInputTexts(body: Buffer): ReadonlyMap<string, string> {
  const texts = new Map<string, string>();
  const root = body.includes('"tool_use"') ? scanObject(body, 0) : undefined;
  const messages = root === undefined ? undefined : lastMember(root, "messages");
  const elements = messages === undefined ? [] : (scanArray(body, messages.value.start) ?? []);
  for (const [messageIndex, element] of elements.entries()) {
    const message = scanObject(body, element.start);
    const content = message === undefined ? undefined : lastMember(message, "content");
    const blocks = content === undefined ? [] : (scanArray(body, content.value.start) ?? []);
    for (const [blockIndex, range] of blocks.entries()) {
      const block = scanObject(body, range.start);
      const input = block === undefined ? undefined : lastMember(block, "input");
      if (input === undefined) continue;
      const text = body.toString("utf8", input.value.start, input.value.end);
      texts.set(`${messageIndex}.${blockIndex}`, withoutWhitespace(text));
    }
  }
  return texts;
}

function withoutWhitespace(json: string): string {
  return json.replace(/"[^"\\]*(?:\\[\s\S][^"\\]*)*"|\s+/g, (match) =>
    match[0] === '"' ? match : "",
  );
}
