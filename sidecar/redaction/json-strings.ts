/** A string of a JSON text. */
export interface JsonString {
  /** Offset of the opening quote and after the closing one. */
  readonly start: number;
  readonly end: number;
  /** The member that it is the value of, or that holds the array it is in; "" at the top. */
  readonly member: string;
  readonly isMemberName: boolean;
  readonly parent: JsonContainer | undefined;
}

/** An object or array around a string, innermost first. */
export interface JsonContainer {
  readonly parent: JsonContainer | undefined;
  /** Member of the parent that it is the value of; "*" in an array. */
  readonly name: string;
  readonly isArray: boolean;
  /** Members that tell siblings of a stream apart (`index: 1`), known after the whole scan. */
  tag: string;
  /** The member whose value comes next. */
  pending: string;
}

const tagMembers = new Set(["index", "output_index", "content_index", "item_id"]);
const scalar = /[^\s,:{}[\]"]+/y;

/**
 * The strings of a JSON text in order. Total: on text that is not JSON, what looks like strings.
 * Linear in the text.
 */
export function jsonStrings(text: string, from = 0, to = text.length): JsonString[] {
  const found: JsonString[] = [];
  let container: JsonContainer | undefined;
  let expectsName = false;
  for (let at = from; at < to; ) {
    const c = text.charCodeAt(at);
    if (c === 0x22) {
      const end = endOfString(text, at, to);
      if (container !== undefined && expectsName) {
        found.push({ start: at, end, member: "", isMemberName: true, parent: container });
        container.pending = text.slice(at + 1, end - 1);
        expectsName = false;
      } else {
        found.push({
          start: at,
          end,
          member: nameIn(container),
          isMemberName: false,
          parent: container,
        });
        addTag(container, text.slice(at + 1, Math.min(end - 1, at + 65)));
      }
      at = end;
    } else if (c === 0x7b || c === 0x5b) {
      const isArray = c === 0x5b;
      container = { parent: container, name: nameIn(container), isArray, tag: "", pending: "" };
      expectsName = !isArray;
      at += 1;
    } else if (c === 0x7d || c === 0x5d) {
      container = container?.parent;
      expectsName = false;
      at += 1;
    } else if (c === 0x2c) {
      expectsName = container !== undefined && !container.isArray;
      at += 1;
    } else {
      scalar.lastIndex = at;
      const isWord = c > 0x20 && c !== 0x3a && scalar.test(text);
      const word = isWord ? scalar.lastIndex : at + 1;
      if (isWord) addTag(container, text.slice(at, Math.min(word, at + 64)));
      at = word;
    }
  }
  return found;
}

/** No response is nested deeper; a bound on the work for a forged one. */
const maxKeyDepth = 32;

/** Path of member names with the tags of the containers: equal for the pieces of one stream. */
export function streamKey(string: JsonString): string {
  const parts = [string.member];
  for (let c = string.parent; c !== undefined && parts.length <= maxKeyDepth; c = c.parent)
    parts.push(`${c.name}#${c.tag}`);
  return parts.join("/");
}

function nameIn(container: JsonContainer | undefined): string {
  if (container === undefined) return "";
  return container.isArray ? "*" : container.pending;
}

function addTag(container: JsonContainer | undefined, value: string): void {
  if (container === undefined || container.isArray || !tagMembers.has(container.pending)) return;
  container.tag += `${container.pending}=${value};`;
}

function endOfString(text: string, open: number, to: number): number {
  for (let at = open + 1; ; ) {
    const quote = text.indexOf('"', at);
    if (quote < 0 || quote >= to) return to;
    let backslashes = 0;
    while (text.charCodeAt(quote - 1 - backslashes) === 0x5c && quote - 1 - backslashes > open)
      backslashes += 1;
    if (backslashes % 2 === 0) return quote + 1;
    at = quote + 1;
  }
}
