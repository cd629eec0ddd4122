/**
 * The engine's id of a tool call, verbatim where it is there and not taken, else with a suffix or
 * a generated one: harnesses match calls and results by id. Adds the result to `taken`.
 */
export function uniqueId(
  engineId: string | null,
  taken: Set<string>,
  generate: () => string,
): string {
  const base = engineId ?? generate();
  let id = base;
  for (let count = 2; taken.has(id); count += 1) id = `${base}_${count}`;
  taken.add(id);
  return id;
}
