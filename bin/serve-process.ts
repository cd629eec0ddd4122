import process from "node:process";
import type { Command } from "commander";
import type { z } from "zod";
import { loadConfig } from "../runtime/load-config.ts";
import { type Logger, type logLevels, openLog } from "../runtime/log.ts";
import { listenForShutdown } from "../runtime/shutdown.ts";
import { watchParent } from "../runtime/watch-parent.ts";

/** Flags of every command that serves until it is stopped; the others are configuration. */
export interface ServeFlags {
  readonly config?: string;
  readonly printConfig?: boolean;
  readonly exitWithParent?: boolean;
  readonly [value: string]: unknown;
}

export interface ServedProcess {
  /** What whoever started it must know, printed as one JSON line: ports, URLs, compute. */
  readonly listening: Readonly<Record<string, unknown>>;
  close(): Promise<void>;
}

/**
 * A process of one server, from its configuration to SIGTERM or SIGINT: prints where it listens,
 * and ends with its parent where that is asked for.
 */
export async function serveProcess<
  S extends z.ZodObject & z.ZodType<{ readonly logLevel: (typeof logLevels)[number] }>,
>(options: {
  readonly name: string;
  readonly schema: S;
  /** Of its variables, after `OUTRIGGER_`. */
  readonly environmentPrefix: string;
  readonly flags: ServeFlags;
  /** Its options are named like the values they set. */
  readonly command: Command;
  /** Libraries are best loaded here, so that --help and --print-config need none. */
  readonly start: (config: z.output<S>, log: Logger) => Promise<ServedProcess>;
}): Promise<void> {
  const { config: file, printConfig, exitWithParent, ...values } = options.flags;
  const loaded = await loadConfig(options.schema, {
    file,
    environment: process.env,
    environmentPrefix: options.environmentPrefix,
    flags: values,
    optionNames: new Map(
      options.command.options.map((option) => [
        option.attributeName(),
        option.long ?? option.flags,
      ]),
    ),
  });
  if (printConfig === true) {
    process.stdout.write(`${loaded.print()}\n`);
    return;
  }
  const log = openLog({ level: loaded.config.logLevel, process: options.name });
  const shutdown = listenForShutdown((name) => log.info({ signal: name }, "stopping"));
  const served = await options.start(loaded.config, log);
  const { listening } = served;
  process.stdout.write(`${JSON.stringify({ event: "listening", ...listening })}\n`);
  log.info(listening, "listening");
  const stopWatching =
    exitWithParent === true ? watchParent(() => process.exit(0)) : () => undefined;
  await new Promise<void>((resolve) => {
    shutdown.signal.addEventListener("abort", () => resolve(), { once: true });
    if (shutdown.signal.aborted) resolve();
  });
  stopWatching();
  await served.close();
  shutdown.release();
  log.info("stopped");
}
