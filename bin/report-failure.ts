import { OutriggerError } from "../core/outrigger-error.ts";

/**
 * Prints a failure for people: what, whose fault, what to do. Gives the exit code: 2 for what the
 * user can mend in the command or its files, 1 for the rest. Unknown errors keep their stack; a
 * file that is missing or cannot be read or written is the user's.
 */
export function reportFailure(
  error: unknown,
  write = (text: string) => process.stderr.write(text),
): number {
  if (error instanceof OutriggerError) {
    write(`outrigger: ${error.message}\n`);
    write(`  reason: ${error.reason} (${error.origin})\n`);
    if (error.hint !== undefined) write(`  ${error.hint}\n`);
    return error.origin === "user" ? 2 : 1;
  }
  if (isFileError(error)) {
    write(`outrigger: ${error.message}\n  reason: file-unusable (user)\n`);
    return 2;
  }
  write(
    `outrigger: unexpected failure\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`,
  );
  return 1;
}

const fileErrors = new Set([
  "ENOENT",
  "EACCES",
  "EPERM",
  "EISDIR",
  "ENOTDIR",
  "EEXIST",
  "EROFS",
  "ENOSPC",
]);

/** Messages of these say what was tried with which path. */
function isFileError(error: unknown): error is NodeJS.ErrnoException {
  if (!(error instanceof Error)) return false;
  const { code, path } = error as NodeJS.ErrnoException;
  return path !== undefined && fileErrors.has(code ?? "");
}
