import { type Logger, pino } from "pino";

export type { Logger } from "pino";

export const logLevels = ["trace", "debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof logLevels)[number];

/** Paths that are never written, wherever they occur one level deep. */
const secretPaths = ["token", "apiKey", "authorization", "privateKey", "secret", "password"];

/**
 * Structured JSON log on stderr, or appended to a file; stdout belongs to the command's own output.
 */
export function openLog(options: {
  readonly level: LogLevel;
  readonly process: string;
  readonly file?: string;
}): Logger {
  return pino(
    {
      level: options.level,
      base: { process: options.process, pid: process.pid },
      redact: { paths: secretPaths.flatMap((p) => [p, `*.${p}`]), censor: "***" },
    },
    pino.destination({ dest: options.file ?? 2, sync: true }),
  );
}
