/** A value of the input that a variable asks for, or why there is none. */
export type EnvMapResult =
  | { readonly kind: "built"; readonly environment: Readonly<Record<string, string>> }
  | { readonly kind: "unusable"; readonly message: string };

/**
 * The variables that a rollout's `env_map` names. A value `input` or `input.a.0.b` is a path into
 * the rollout's input (list indexes count as names); any other value is literal. What is not text
 * is given as JSON.
 *
 * Example: `{ QUESTION: "input.question", MODE: "fast" }` with the input `{ question: "1+1" }`
 * gives `{ QUESTION: "1+1", MODE: "fast" }`.
 */
export function buildEnvMap(
  envMap: Readonly<Record<string, string>>,
  input: unknown,
): EnvMapResult {
  const environment: Record<string, string> = {};
  for (const [name, path] of Object.entries(envMap)) {
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
      return { kind: "unusable", message: `local.env_map: ${name} is not a variable name` };
    }
    const value = valueAt(input, path);
    if (value === undefined) {
      return {
        kind: "unusable",
        message: `local.env_map.${name}: the input has nothing at ${path}`,
      };
    }
    const text = typeof value === "string" ? value : JSON.stringify(value);
    if (text.includes("\0")) {
      return { kind: "unusable", message: `local.env_map.${name}: a variable cannot hold NUL` };
    }
    environment[name] = text;
  }
  return { kind: "built", environment };
}

function valueAt(input: unknown, path: string): unknown {
  if (path !== "input" && !path.startsWith("input.")) return path;
  let value = input;
  for (const part of path.split(".").slice(1)) {
    if (Array.isArray(value)) value = /^\d+$/.test(part) ? value[Number(part)] : undefined;
    else if (typeof value === "object" && value !== null && Object.hasOwn(value, part)) {
      value = (value as Record<string, unknown>)[part];
    } else return undefined;
  }
  return value;
}
