import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { type Welcome, WelcomeSchema } from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";
import type { Logger } from "../../runtime/log.ts";

/**
 * The last welcome, brought up to date with what came after it, in the spool directory: a sidecar
 * that restarts while the controller is away goes on serving. It may hold an engine's credential,
 * hence mode 0600.
 */
export interface WelcomeCache {
  readonly current: Welcome | undefined;
  save(welcome: Welcome): void;
}

export function openWelcomeCache(directory: string, log: Logger): WelcomeCache {
  const path = join(directory, "welcome");
  let current = readWelcome(path, log);
  return {
    get current() {
      return current;
    },
    save: (welcome) => {
      current = welcome;
      try {
        const temporary = `${path}.new`;
        writeFileSync(temporary, toBinary(WelcomeSchema, welcome), { mode: 0o600, flush: true });
        renameSync(temporary, path);
      } catch (error) {
        log.warn({ err: error }, "the controller's settings could not be kept for a restart");
      }
    },
  };
}

function readWelcome(path: string, log: Logger): Welcome | undefined {
  try {
    return fromBinary(WelcomeSchema, readFileSync(path));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT")
      log.warn({ err: error }, "the controller's settings of the last run cannot be read");
    return undefined;
  }
}
