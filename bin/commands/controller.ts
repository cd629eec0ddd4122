import { join } from "node:path";
import process from "node:process";
import { Command } from "commander";
import {
  type ControllerConfig,
  controllerConfigSchema,
} from "../../controller/controller-config.ts";
import {
  type Controller,
  openController,
  wideCapability,
} from "../../controller/open-controller.ts";
import { writeAtomically } from "../../controller/run-directory.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { defaultFailurePolicy } from "../../core/rollouts/failure-policy.ts";
import { loadConfig } from "../../runtime/load-config.ts";
import { openLog } from "../../runtime/log.ts";
import { listenForShutdown } from "../../runtime/shutdown.ts";
import { watchParent } from "../../runtime/watch-parent.ts";
import { parsePort } from "../option-values.ts";

interface ControllerFlags {
  readonly config?: string;
  readonly dir?: string;
  readonly host?: string;
  readonly grpcPort?: number;
  readonly httpPort?: number;
  readonly engine?: string[];
  readonly logLevel?: string;
  readonly printConfig?: boolean;
  readonly exitWithParent?: boolean;
}

/** `outrigger controller`: ingest, store, rollouts and HTTP API, until SIGTERM or SIGINT. */
export function controllerCommand(): Command {
  return new Command("controller")
    .description("Serve the controller alone: ingest, store, rollouts and HTTP API.")
    .option("-c, --config <file>", "YAML or JSON configuration file")
    .option("--dir <dir>", "database and token key (default .outrigger/controller)")
    .option("--host <address>", "address to listen on (default 127.0.0.1)")
    .option(
      "--grpc-port <number>",
      "port for sidecars; 0 takes any free one (default 8790)",
      parsePort,
    )
    .option(
      "--http-port <number>",
      "port of the API; 0 takes any free one (default 8791)",
      parsePort,
    )
    .option("-e, --engine <url...>", "engine base URL that sidecars send calls to; repeatable")
    .option("--log-level <level>", "trace, debug, info, warn, error or silent")
    .option("--exit-with-parent", "end when standard input closes, that is when the parent dies")
    .option("--print-config", "print every value with its source, and end")
    .addHelpText(
      "after",
      `
Every value can also be set in the file or as OUTRIGGER_CONTROLLER_<PATH>. At the start an
administrator's token and one for sidecars are written into the directory (admin-token,
sidecar-token; readable by the owner only).`,
    )
    .action(async (flags: ControllerFlags) => run(flags));
}

async function run(flags: ControllerFlags): Promise<void> {
  const loaded = await loadConfig(controllerConfigSchema, {
    file: flags.config,
    environment: process.env,
    environmentPrefix: "CONTROLLER",
    flags: {
      dir: flags.dir,
      host: flags.host,
      grpcPort: flags.grpcPort,
      httpPort: flags.httpPort,
      "policy.urls": flags.engine,
      logLevel: flags.logLevel,
    },
  });
  if (flags.printConfig === true) {
    process.stdout.write(`${loaded.print()}\n`);
    return;
  }
  const { config } = loaded;
  refuseExposed(config);
  const log = openLog({ level: config.logLevel, process: "controller" });
  const shutdown = listenForShutdown((name) => log.info({ signal: name }, "draining"));
  const controller = await open(config, log);
  await writeTokens(config.dir, controller);
  const { grpcAddress, apiUrl } = controller;
  process.stdout.write(`${JSON.stringify({ event: "listening", grpcAddress, apiUrl })}\n`);
  await new Promise<void>((resolve) => {
    shutdown.signal.addEventListener("abort", () => resolve(), { once: true });
    if (shutdown.signal.aborted) resolve();
    if (flags.exitWithParent === true) watchParent(resolve);
  });
  await controller.close();
  shutdown.release();
  process.exit(0);
}

function refuseExposed({ host, allowRemote }: ControllerConfig): void {
  const isLoopback = host === "localhost" || host === "::1" || host.startsWith("127.");
  if (isLoopback || allowRemote) return;
  throw new OutriggerError("exposed-address", `${host} can be reached from other machines`, {
    origin: "user",
    hint: "Set OUTRIGGER_CONTROLLER_ALLOW_REMOTE=true if something in front of it encrypts the traffic.",
  });
}

async function open(
  config: ControllerConfig,
  log: ReturnType<typeof openLog>,
): Promise<Controller> {
  const { urls, model, version, apiKey } = config.policy;
  const controller: Controller = await openController({
    directory: config.dir,
    host: config.host,
    grpcPort: config.grpcPort,
    httpPort: config.httpPort,
    capture: {
      captureText: config.capture.text,
      redactionPatterns: config.capture.redact,
      requireCanary: config.capture.requireCanary,
      deduplicateRetries: config.capture.deduplicateRetries,
    },
    ...(urls.length > 0 && {
      policy: {
        model,
        version,
        endpoints: urls.map((url) => ({ url, model, ...(apiKey !== undefined && { apiKey }) })),
      },
    }),
    failurePolicy: defaultFailurePolicy,
    log,
    now: Date.now,
    hooks: {
      onQueued: () => undefined,
      onChanged: () => undefined,
      status: async () => ({ rollouts: await controller.rollouts.countByState() }),
    },
  });
  return controller;
}

async function writeTokens(directory: string, controller: Controller): Promise<void> {
  for (const scope of ["admin", "sidecar"] as const) {
    const token = await controller.sign(wideCapability(scope, Date.now()));
    writeAtomically(join(directory, `${scope}-token`), token, 0o600);
  }
}
