import process from "node:process";
import { Command } from "commander";
import { boundHeap } from "../../runtime/bound-heap.ts";
import { loadConfig } from "../../runtime/load-config.ts";
import { openLog } from "../../runtime/log.ts";
import { packageVersion } from "../../runtime/package-version.ts";
import { listenForShutdown } from "../../runtime/shutdown.ts";
import { watchParent } from "../../runtime/watch-parent.ts";
import { sidecarConfigSchema } from "../../sidecar/sidecar-config.ts";
import { Sidecar } from "../../sidecar/start-sidecar.ts";
import { parsePort } from "../option-values.ts";

interface SidecarFlags {
  readonly config?: string;
  readonly host?: string;
  readonly port?: number;
  readonly engine?: string[];
  readonly engineModel?: string;
  readonly controller?: string;
  readonly captureFile?: string;
  readonly captureText?: boolean;
  readonly rolloutId?: string;
  readonly spoolDir?: string;
  readonly logLevel?: string;
  readonly printConfig?: boolean;
  readonly exitWithParent?: boolean;
}

/** `outrigger sidecar`: serves until SIGTERM or SIGINT; prints one JSON line when it listens. */
export function sidecarCommand(): Command {
  return new Command("sidecar")
    .description(
      "Proxy a harness's model traffic and stream what was sampled to a controller, or to a file.",
    )
    .option("-c, --config <file>", "YAML or JSON configuration file")
    .option("--host <address>", "address to listen on (default 127.0.0.1)")
    .option(
      "-p, --port <number>",
      "port to listen on; 0 takes any free one (default 8787)",
      parsePort,
    )
    .option(
      "-e, --engine <url...>",
      "engine base URL, up to and including /v1; repeatable; a controller's engines replace it",
    )
    .option("--engine-model <name>", "model name to ask the engine for, whatever the harness says")
    .option("--controller <host:port>", "gRPC address of the controller")
    .option("--capture-file <path>", "write records there as JSON lines, in place of a controller")
    .option("--capture-text", "write the text of requests and answers too, secrets redacted")
    .option("--rollout-id <id>", "the one rollout that this sidecar is for")
    .option("--spool-dir <path>", "where records wait for the controller")
    .option("--log-level <level>", "trace, debug, info, warn, error or silent")
    .option("--exit-with-parent", "end when standard input closes, that is when the parent dies")
    .option("--print-config", "print every value with its source, and end")
    .addHelpText(
      "after",
      `
Every value can also be set in the file or as OUTRIGGER_SIDECAR_<PATH>, for example engines.apiKey
as OUTRIGGER_SIDECAR_ENGINES_API_KEY; --print-config lists them. The controller's token (its file
sidecar-token) goes into OUTRIGGER_SIDECAR_CONTROLLER_TOKEN.

Example, without a controller:
  outrigger sidecar --engine http://127.0.0.1:8000/v1 --capture-file calls.jsonl
  OPENAI_BASE_URL=http://127.0.0.1:8787/v1 your-harness`,
    )
    .action(async (flags: SidecarFlags) => run(flags));
}

async function run(flags: SidecarFlags): Promise<void> {
  const loaded = await loadConfig(sidecarConfigSchema, {
    file: flags.config,
    environment: process.env,
    environmentPrefix: "SIDECAR",
    flags: {
      host: flags.host,
      port: flags.port,
      "engines.urls": flags.engine,
      "engines.model": flags.engineModel,
      "controller.address": flags.controller,
      captureFile: flags.captureFile,
      captureText: flags.captureText,
      "binding.rolloutId": flags.rolloutId,
      "spool.dir": flags.spoolDir,
      logLevel: flags.logLevel,
    },
  });
  if (flags.printConfig === true) {
    process.stdout.write(`${loaded.print()}\n`);
    return;
  }
  const log = openLog({ level: loaded.config.logLevel, process: "sidecar" });
  const shutdown = listenForShutdown((name) => log.info({ signal: name }, "draining"));
  const sidecar = await Sidecar.start({ config: loaded.config, version: packageVersion(), log });
  process.stdout.write(`${JSON.stringify({ event: "listening", url: sidecar.url })}\n`);
  boundHeap();
  await new Promise<void>((resolve) => {
    shutdown.signal.addEventListener("abort", () => resolve(), { once: true });
    if (shutdown.signal.aborted) resolve();
    if (flags.exitWithParent === true) watchParent(resolve);
  });
  await sidecar.close();
  // The spool is flushed and every socket is closed; nothing else may keep the process alive.
  process.exit(0);
}
