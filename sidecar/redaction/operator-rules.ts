import { OutriggerError } from "../../core/outrigger-error.ts";
import type { OperatorRule, SecretRange } from "./find-secrets.ts";

/**
 * The operator's patterns in RE2 syntax, which has no backreferences and no lookaround and so
 * matches in time linear in the text, whatever the pattern. The library is loaded only when there
 * is a pattern. Throws an `OutriggerError` that names every pattern that is not RE2.
 */
export async function compileOperatorRules(
  patterns: readonly string[],
): Promise<readonly OperatorRule[]> {
  if (patterns.length === 0) return [];
  const { RE2JS } = await import("re2js");
  const problems: string[] = [];
  const rules: OperatorRule[] = [];
  patterns.forEach((pattern, index) => {
    try {
      const compiled = RE2JS.compile(pattern);
      if (compiled.matcher("").find()) throw new Error("it matches the empty text");
      rules.push((text) => {
        const matcher = compiled.matcher(text);
        const found: SecretRange[] = [];
        while (matcher.find())
          found.push({ start: matcher.start(), end: matcher.end(), rule: `operator-${index + 1}` });
        return found;
      });
    } catch (error) {
      problems.push(`${JSON.stringify(pattern)}: ${(error as Error).message}`);
    }
  });
  if (problems.length > 0) {
    throw new OutriggerError(
      "redaction-pattern-invalid",
      `redaction patterns that cannot be used:\n${problems.map((p) => `  ${p}`).join("\n")}`,
      { origin: "user", hint: "Write them in RE2 syntax (no lookaround, no backreferences)." },
    );
  }
  return rules;
}
