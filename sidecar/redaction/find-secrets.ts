import { secretExpression } from "./secret-patterns.ts";

/** A secret in a text: UTF-16 offsets, and the name of the rule that found it. */
export interface SecretRange {
  readonly start: number;
  readonly end: number;
  readonly rule: string;
}

/** A rule of the operator: its matches in a text. */
export type OperatorRule = (text: string) => readonly SecretRange[];

export type SecretFinder = (text: string) => readonly SecretRange[];

/** No secret is shorter, so such texts need no search. */
const minSecretLength = 6;
/** Texts are remembered from this length on: a harness sends its history again with every call. */
const minCachedLength = 256;

/**
 * Finds what the built-in patterns and the operator's rules match, in order and without overlap.
 * Results for longer texts are remembered, up to `maxCachedLength` characters in all.
 */
export function createSecretFinder(
  rules: readonly OperatorRule[],
  maxCachedLength = 2_000_000,
): SecretFinder {
  const expression = secretExpression();
  const cache = new Map<string, readonly SecretRange[]>();
  let cachedLength = 0;
  const search = (text: string): readonly SecretRange[] => {
    const found = builtInMatches(expression, text);
    for (const rule of rules) found.push(...rule(text));
    return withoutOverlap(found);
  };
  const remember = (text: string, ranges: readonly SecretRange[]): void => {
    if (text.length > maxCachedLength / 4) return;
    cache.set(text, ranges);
    cachedLength += text.length;
    for (const oldest of cache.keys()) {
      if (cachedLength <= maxCachedLength) break;
      cache.delete(oldest);
      cachedLength -= oldest.length;
    }
  };
  return (text) => {
    if (text.length < minSecretLength && rules.length === 0) return [];
    if (text.length < minCachedLength) return search(text);
    const known = cache.get(text);
    if (known !== undefined) return known;
    const ranges = search(text);
    remember(text, ranges);
    return ranges;
  };
}

function builtInMatches(expression: RegExp, text: string): SecretRange[] {
  const found: SecretRange[] = [];
  for (const match of text.matchAll(expression)) {
    let rule = "secret";
    let kept = 0;
    for (const [name, value] of Object.entries(match.groups ?? {})) {
      if (value === undefined) continue;
      if (name.startsWith("keep")) kept = value.length;
      else rule = name.replaceAll("_", "-");
    }
    found.push({ start: match.index + kept, end: match.index + match[0].length, rule });
  }
  return found;
}

/** Sorted; ranges that overlap become one under the name of the first. */
export function withoutOverlap(ranges: readonly SecretRange[]): SecretRange[] {
  const merged: SecretRange[] = [];
  for (const range of [...ranges].sort((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (range.end <= range.start) continue;
    if (last === undefined || range.start >= last.end) merged.push(range);
    else merged[merged.length - 1] = { ...last, end: Math.max(last.end, range.end) };
  }
  return merged;
}
