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
  const editOf = (key: string) => (Object.hasOwn(edits, key) ? edits[key] : undefined);
  const seen = new Set<string>();
  let keptCount = 0;
  for (const { key, value } of object.members) {
    const edit = editOf(key);
    if (edit === undefined || !("remove" in edit)) keptCount += 1;
    if (edit === undefined) continue;
    seen.add(key);
    if ("set" in edit) cuts.push({ ...value, text: JSON.stringify(edit.set) });
    if ("merge" in edit) {
      const inner = scanObject(bytes, value.start);
      if (inner === undefined) cuts.push({ ...value, text: objectText(edit.merge) });
      else collectCuts(bytes, inner, edit.merge, cuts);
    }
  }
  cuts.push(
    ...removalCuts(object.members, ({ key }) => {
      const edit = editOf(key);
      return edit !== undefined && "remove" in edit;
    }),
  );
  const added = addedMembers(edits, seen);
  if (added !== "") {
    const text = keptCount > 0 ? `,${added}` : added;
    cuts.push({ start: object.close, end: object.close, text });
  }
  return object.close + 1;
}

function addedMembers(edits: MemberEdits, seen: ReadonlySet<string>): string {
  return Object.entries(edits)
    .filter(([key, edit]) => !seen.has(key) && !("remove" in edit))
    .map(([key, edit]) => {
      const value =
        "merge" in edit ? objectText(edit.merge) : JSON.stringify("set" in edit ? edit.set : null);
      return `${JSON.stringify(key)}:${value}`;
    })
    .join(",");
}

function objectText(edits: MemberEdits): string {
  return `{${addedMembers(edits, new Set())}}`;
}
