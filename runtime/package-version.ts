import { readFileSync } from "node:fs";

/** Set where everything is bundled into one file, which has no package.json beside it. */
declare const OUTRIGGER_VERSION: string | undefined;

/** The version in package.json: the only place that says it. */
export function packageVersion(): string {
  if (typeof OUTRIGGER_VERSION === "string") return OUTRIGGER_VERSION;
  for (const path of ["../package.json", "../../package.json"]) {
    try {
      const json = JSON.parse(readFileSync(new URL(path, import.meta.url), "utf8")) as {
        version: string;
      };
      return json.version;
    } catch {
      // Compiled code lies one folder deeper than the sources.
    }
  }
  return "unknown";
}
