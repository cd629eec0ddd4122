export interface ToolCall {
  readonly name: string;
  /** JSON text of the arguments, exactly as the model wrote it. */
  readonly arguments: string;
}

/**
 * Reads the body of a `<tool_call>` block, `{"name": …, "arguments": {…}}`; undefined when it is
 * not one. The arguments stay the model's own text, so that a history with this call renders back
 * to what was sampled.
 */
export function parseToolCall(body: string): ToolCall | undefined {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch {
    return undefined;
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return undefined;
  const call = value as { name?: unknown; arguments?: unknown };
  if (typeof call.name !== "string" || call.name === "") return undefined;
  const { arguments: given } = call;
  // Some models write the arguments as JSON text inside a JSON string.
  if (typeof given === "string") return { name: call.name, arguments: given };
  if (given === undefined || given === null) return { name: call.name, arguments: "{}" };
  if (typeof given !== "object" || Array.isArray(given)) return undefined;
  return { name: call.name, arguments: memberText(body, "arguments") };
}

/** The source text of a member of the top-level object of valid JSON; the last one of that name. */
function memberText(json: string, name: string): string {
  let found = "";
  let at = json.indexOf("{") + 1;
  for (;;) {
    at = skipSpace(json, at);
    if (json[at] !== '"') return found;
    const keyEnd = stringEnd(json, at);
    const key = JSON.parse(json.slice(at, keyEnd)) as string;
    const start = skipSpace(json, skipSpace(json, keyEnd) + 1);
    const end = valueEnd(json, start);
    if (key === name) found = json.slice(start, end);
    at = skipSpace(json, end) + 1;
  }
}

function skipSpace(json: string, from: number): number {
  let at = from;
  while (at < json.length && " \t\n\r".includes(json[at] as string)) at++;
  return at;
}

function stringEnd(json: string, quote: number): number {
  let at = quote + 1;
  while (at < json.length && json[at] !== '"') at += json[at] === "\\" ? 2 : 1;
  return at + 1;
}

function valueEnd(json: string, start: number): number {
  let depth = 0;
  let at = start;
  while (at < json.length) {
    const c = json[at] as string;
    if (c === '"') {
      at = stringEnd(json, at);
      continue;
    }
    if (depth === 0 && (c === "," || c === "}" || c === "]")) break;
    if (c === "{" || c === "[") depth++;
    if (c === "}" || c === "]") depth--;
    at++;
    if (depth === 0 && (c === "}" || c === "]")) break;
  }
  return depth === 0 ? json.slice(0, at).trimEnd().length : json.length;
}
