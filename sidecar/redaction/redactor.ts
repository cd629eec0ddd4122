import {
  createSecretFinder,
  type OperatorRule,
  type SecretFinder,
  type SecretRange,
} from "./find-secrets.ts";
import { type JsonString, jsonStrings, streamKey } from "./json-strings.ts";
import { secretMembers } from "./secret-patterns.ts";

/** Replaces secrets in captured text by `[redacted:<rule>]`. */
export interface Redactor {
  /**
   * A body as captured: JSON, an event stream of JSON, or any text. JSON stays JSON: only the
   * contents of strings change. Unchanged bodies are returned as they are.
   */
  redactBytes(body: Uint8Array): Uint8Array;
  redactText(text: string): string;
}

/** A part of a text that is to be replaced. */
interface Edit {
  readonly start: number;
  readonly end: number;
  readonly replacement: string;
}

/** A string of JSON with its content decoded. */
interface Piece {
  readonly string: JsonString;
  readonly content: string;
}

export function createRedactor(rules: readonly OperatorRule[] = []): Redactor {
  const find = createSecretFinder(rules);
  const redactText = (text: string): string => applyEdits(text, editsOf(text, find));
  return {
    redactText,
    redactBytes: (body) => {
      const text = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString("utf8");
      const redacted = redactText(text);
      return redacted === text ? body : Buffer.from(redacted, "utf8");
    },
  };
}

function editsOf(text: string, find: SecretFinder): Edit[] {
  const first = /\S/.exec(text)?.[0];
  if (first === "{" || first === "[") {
    // Tokens of a response are repeated one by one beside their logprobs.
    const isStream = (string: JsonString): boolean => streamKey(string).includes("/logprobs#");
    return editsOfStrings(text, jsonStrings(text), find, isStream);
  }
  if (/^(?:data|event|id|retry)?:/.test(text)) return editsOfEventStream(text, find);
  return find(text).map(markerEdit);
}

/** A secret may be cut into the deltas of many events: those of one stream are read as one text. */
function editsOfEventStream(text: string, find: SecretFinder): Edit[] {
  const strings: JsonString[] = [];
  const edits: Edit[] = [];
  for (let at = 0; at < text.length; ) {
    const newline = text.indexOf("\n", at);
    const end = newline < 0 ? text.length : newline;
    const json = text.startsWith("data:", at) ? at + 5 : undefined;
    if (json !== undefined && /^\s*[{[]/.test(text.slice(json, json + 8))) {
      for (const string of jsonStrings(text, json, end)) strings.push(string);
    } else {
      for (const { start, end: stop, rule } of find(text.slice(at, end)))
        edits.push(markerEdit({ start: at + start, end: at + stop, rule }));
    }
    at = end + 1;
  }
  edits.push(...editsOfStrings(text, strings, find, () => true));
  return edits.sort((a, b) => a.start - b.start);
}

function editsOfStrings(
  text: string,
  strings: readonly JsonString[],
  find: SecretFinder,
  isStream: (string: JsonString) => boolean,
): Edit[] {
  const streams = new Map<string, Piece[]>();
  const edits: Edit[] = [];
  for (const string of strings) {
    const content = decodeString(text, string);
    if (!string.isMemberName && secretMembers.test(string.member) && content !== "") {
      edits.push(stringEdit(string, "[redacted:member]"));
    } else if (string.isMemberName || !isStream(string)) {
      edits.push(...editsOfPieces([{ string, content }], find));
    } else {
      const key = streamKey(string);
      const pieces = streams.get(key);
      if (pieces === undefined) streams.set(key, [{ string, content }]);
      else pieces.push({ string, content });
    }
  }
  for (const pieces of streams.values()) edits.push(...editsOfPieces(pieces, find));
  return edits.sort((a, b) => a.start - b.start);
}

/** The marker goes where the secret starts; the pieces that go on with it lose their part. */
function editsOfPieces(pieces: readonly Piece[], find: SecretFinder): Edit[] {
  const only = pieces.length === 1 ? pieces[0] : undefined;
  const joined = only === undefined ? pieces.map((piece) => piece.content).join("") : only.content;
  const ranges = find(joined);
  if (ranges.length === 0) return [];
  const edits: Edit[] = [];
  let pieceStart = 0;
  let nextRange = 0;
  for (const { string, content } of pieces) {
    const pieceEnd = pieceStart + content.length;
    while ((ranges[nextRange]?.end ?? Number.POSITIVE_INFINITY) <= pieceStart) nextRange += 1;
    const own: Edit[] = [];
    for (let i = nextRange; (ranges[i]?.start ?? pieceEnd) < pieceEnd; i += 1) {
      const range = ranges[i] as SecretRange;
      own.push({
        start: Math.max(range.start, pieceStart) - pieceStart,
        end: Math.min(range.end, pieceEnd) - pieceStart,
        replacement: range.start >= pieceStart ? markerEdit(range).replacement : "",
      });
    }
    if (own.length > 0) edits.push(stringEdit(string, applyEdits(content, own)));
    pieceStart = pieceEnd;
  }
  return edits;
}

function decodeString(text: string, { start, end }: JsonString): string {
  const raw = text.slice(start + 1, end - 1);
  if (!raw.includes("\\")) return raw;
  try {
    return JSON.parse(text.slice(start, end)) as string;
  } catch {
    // Not JSON after all: as it stands.
    return raw;
  }
}

function stringEdit({ start, end }: JsonString, content: string): Edit {
  return { start, end, replacement: JSON.stringify(content) };
}

function markerEdit({ start, end, rule }: SecretRange): Edit {
  return { start, end, replacement: `[redacted:${rule}]` };
}

/** `edits` in order and without overlap. */
function applyEdits(text: string, edits: readonly Edit[]): string {
  if (edits.length === 0) return text;
  const parts: string[] = [];
  let at = 0;
  for (const edit of edits) {
    parts.push(text.slice(at, edit.start), edit.replacement);
    at = edit.end;
  }
  parts.push(text.slice(at));
  return parts.join("");
}
