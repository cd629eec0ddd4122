import { readFileSync } from "node:fs";
import { parse as parseYaml } from "yaml";
import { OutriggerError } from "../core/outrigger-error.ts";

/** The one mapping in a YAML or JSON file; an empty file is an empty one. */
export function readConfigFile(path: string): Record<string, unknown> {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new OutriggerError(
      "config-unreadable",
      `cannot read ${path}: ${(cause as Error).message}`,
      {
        origin: "user",
        hint: "Check the path of the configuration file.",
        cause,
      },
    );
  }
  try {
    const value: unknown = parseYaml(text);
    if (value === null || value === undefined) return {};
    if (typeof value !== "object" || Array.isArray(value))
      throw new Error("the top level must be a mapping");
    return value as Record<string, unknown>;
  } catch (cause) {
    throw new OutriggerError("config-syntax", `${path}: ${(cause as Error).message}`, {
      origin: "user",
      hint: "The file must be one YAML (or JSON) mapping.",
      cause,
    });
  }
}
