import { applyCuts, type ByteCut, removalCuts } from "./byte-cuts.ts";
import { type ObjectScan, scanObject, skipWhitespace } from "./json-scan.ts";
import type { JsonValue } from "./json-value.ts";

/** What becomes of one member of a request. */
export type MemberEdit =
  /** Replace its value (every duplicate's), or append the member. */
  | { readonly set: JsonValue }
  | { readonly remove: true }
  /** Edit inside the object that it holds; anything that is no object is replaced by one. */
  | { readonly merge: MemberEdits };

export type MemberEdits = Readonly<Record<string, MemberEdit>>;

/**
 * Applies edits to the top-level members of a JSON object given as bytes. Key order, big integers,
 * whitespace, escapes and duplicates of everything else stay byte for byte: engines' prefix caches
 * and strict gateways depend on them. Undefined when the bytes are not one JSON object.
 */
export function spliceRequest(bytes: Buffer, edits: MemberEdits): Buffer | undefined {
  const root = scanRequest(bytes);
  return root === undefined ? undefined : spliceScanned(bytes, root, edits);
}

/** The request's top-level members; a byte order mark before it is allowed. */
export function scanRequest(bytes: Buffer): ObjectScan | undefined {
  const hasBom = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
  return scanObject(bytes, hasBom ? 3 : 0);
}

/** `spliceRequest` for bytes that were scanned before: a long request is walked once. */
export function spliceScanned(
  bytes: Buffer,
  root: ObjectScan,
  edits: MemberEdits,
): Buffer | undefined {
  const cuts: ByteCut[] = [];
  const end = collectCuts(bytes, root, edits, cuts);
  if (skipWhitespace(bytes, end) !== bytes.length) return undefined;
  return applyCuts(bytes, cuts);
}

/** Returns where the object ends. */
function collectCuts(
  bytes: Buffer,
  object: ObjectScan,
  edits: MemberEdits,
  cuts: ByteCut[],
): number {
  const seen: string[] = [];
  let hasRemoved = false;
  let keptCount = 0;
  for (const { key, value } of object.members) {
    const edit = editOf(edits, key);
    if (edit === undefined) {
      keptCount += 1;
      continue;
    }
    seen.push(key);
    if ("remove" in edit) {
      hasRemoved = true;
      continue;
    }
    keptCount += 1;
    if ("set" in edit) cuts.push({ ...value, text: JSON.stringify(edit.set) });
    else {
      const inner = scanObject(bytes, value.start);
      if (inner === undefined) cuts.push({ ...value, text: objectText(edit.merge) });
      else collectCuts(bytes, inner, edit.merge, cuts);
    }
  }
  if (hasRemoved) {
    const removed = removalCuts(object.members, ({ key }) => isRemoval(editOf(edits, key)));
    cuts.push(...removed);
  }
  const added = addedMembers(edits, seen);
  if (added !== "") {
    const text = keptCount > 0 ? `,${added}` : added;
    cuts.push({ start: object.close, end: object.close, text });
  }
  return object.close + 1;
}

function editOf(edits: MemberEdits, key: string): MemberEdit | undefined {
  return Object.hasOwn(edits, key) ? edits[key] : undefined;
}

function isRemoval(edit: MemberEdit | undefined): boolean {
  return edit !== undefined && "remove" in edit;
}

/** Those of the edits that found no member of their name. */
function addedMembers(edits: MemberEdits, seen: readonly string[]): string {
  let text = "";
  for (const key in edits) {
    const edit = edits[key] as MemberEdit;
    if ("remove" in edit || seen.includes(key)) continue;
    const value = "merge" in edit ? objectText(edit.merge) : JSON.stringify(edit.set);
    text += `${text === "" ? "" : ","}${JSON.stringify(key)}:${value}`;
  }
  return text;
}

function objectText(edits: MemberEdits): string {
  return `{${addedMembers(edits, [])}}`;
}
