import { realpathSync } from "node:fs";
import { basename, dirname, relative, resolve } from "node:path";
import process from "node:process";

export interface InvocationFacts {
  /** The script as it was started, links not resolved. */
  readonly script: string | undefined;
  /** The script that this is in truth. */
  readonly file: string | undefined;
  readonly cwd: string;
  /** What npm was asked for, where it started the script: "exec" for `npx`. */
  readonly npmCommand: string | undefined;
}

/**
 * How to start this program again from where it was started, to be pasted into a shell: messages
 * that quote a command must not name one that is not there. In a clone nothing is on the PATH.
 */
export function describeInvocation({ script, file, cwd, npmCommand }: InvocationFacts): string {
  if (script === undefined || file === undefined) return "outrigger";
  const root = dirname(dirname(file));
  if (basename(file) !== "outrigger.js") return "outrigger";
  if (npmCommand === "exec" || root === cwd) return "npx outrigger";
  // A link of an installed package, found by its name.
  if (basename(script) === "outrigger") return "outrigger";
  const near = relative(cwd, file);
  return `node ${quoteForShell(near.startsWith("..") ? file : near)}`;
}

export function quoteForShell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Of this process. */
export function invocation(): string {
  const [, script] = process.argv;
  return describeInvocation({
    script,
    file: script === undefined ? undefined : realPath(script),
    cwd: process.cwd(),
    npmCommand: process.env["npm_command"],
  });
}

function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return resolve(path);
  }
}
