import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { openNativeBackend } from "../backends/native/native-backend.ts";
import type { PolicyEngines } from "../backends/tinker/outside-engines.ts";
import { openTinkerBackend } from "../backends/tinker/tinker-backend.ts";
import type { Experiment } from "../controller/experiment/load-experiment.ts";
import type { OutriggerError } from "../core/outrigger-error.ts";
import type { TrainerBackend } from "../core/trainer-backend.ts";
import { freePort } from "../runtime/free-port.ts";
import type { Logger } from "../runtime/log.ts";
import { childEnvironment, SupervisedProcess } from "../runtime/supervise-process.ts";

export interface StartBackendOptions {
  /** Gets the backend's state (`backend/`) and its log. */
  readonly directory: string;
  readonly seed: number;
  /** For the backend's process. */
  readonly environment: Readonly<Record<string, string>>;
  readonly log: Logger;
  readonly now: () => number;
  readonly onStarted: (pid: number) => void;
  readonly onGivenUp: (error: OutriggerError) => void;
}

export interface StartedBackend {
  readonly backend: TrainerBackend;
  /** Resolves when it is up (again). */
  start(): Promise<void>;
  whenReady(): Promise<void>;
  wasDownSince(ms: number): boolean;
  /** Ends its process; `backend` is closed by its user. */
  close(): Promise<void>;
}

const readyTimeoutMs = 120_000;
const graceMs = 20_000;

/** The backend that an experiment names, with the process behind it where that is on this machine. */
export async function openExperimentBackend(
  { backend: settings }: Pick<Experiment, "backend">,
  options: StartBackendOptions,
): Promise<StartedBackend> {
  if (settings.kind === "native") return openNative(settings, options);
  return openTinker(settings, options);
}

type Settings<K extends Experiment["backend"]["kind"]> = Extract<
  Experiment["backend"],
  { readonly kind: K }
>;

async function openNative(
  settings: Settings<"native">,
  options: StartBackendOptions,
): Promise<StartedBackend> {
  const ports = { policy: await freePort(), trainer: await freePort() };
  const backend = openNativeBackend({ grpcAddress: `127.0.0.1:${ports.trainer}` });
  const command = [
    "native",
    "--policy-port",
    String(ports.policy),
    "--grpc-port",
    String(ports.trainer),
    "--state",
    join(options.directory, "backend"),
  ];
  const isReady = async (signal: AbortSignal) => (await backend.describe(signal)) !== undefined;
  return supervised(backend, [...command, ...common(settings, options)], isReady, options);
}

/** Without a URL the Tinker server is one in front of the native trainer, on this machine. */
async function openTinker(
  settings: Settings<"tinker">,
  options: StartBackendOptions,
): Promise<StartedBackend> {
  const port = await freePort();
  const url = settings.url ?? `http://127.0.0.1:${port}`;
  const backend = await openTinkerBackend({
    url,
    // A local server has a new address in each session; to the journal it is the same one.
    identity: settings.url ?? "local",
    apiKey: process.env[settings.apiKeyVariable],
    baseModel: settings.baseModel,
    modelDirectory: settings.model,
    journalDirectory: join(options.directory, "backend"),
    loraRank: settings.loraRank,
    maxLength: settings.maxLength,
    concurrency: settings.concurrency,
    engines: enginesOf(settings),
    log: options.log,
  });
  if (settings.url !== undefined) return remote(backend);
  const command = [
    "tinker-server",
    "--port",
    String(port),
    "--state",
    join(options.directory, "backend", "saved"),
  ];
  const isReady = async (signal: AbortSignal) =>
    (await fetch(`${url}/api/v1/healthz`, { signal })).ok;
  return supervised(backend, [...command, ...common(settings, options)], isReady, options);
}

function enginesOf({ engines }: Settings<"tinker">): PolicyEngines | undefined {
  if (engines === undefined) return undefined;
  const { urls, adapterDirectory, apiKeyVariable } = engines;
  const apiKey = apiKeyVariable === undefined ? undefined : process.env[apiKeyVariable];
  return { urls, adapterDirectory, apiKey };
}

/** Flags that the processes of both kinds have. */
function common(settings: Experiment["backend"], { seed }: StartBackendOptions): string[] {
  return [
    "--model",
    settings.model,
    "--compute",
    settings.compute,
    "--seed",
    String(seed),
    ...settings.flags,
    "--exit-with-parent",
  ];
}

function supervised(
  backend: TrainerBackend,
  command: readonly string[],
  isReady: (signal: AbortSignal) => Promise<boolean>,
  options: StartBackendOptions,
): StartedBackend {
  const { log, now, onStarted, onGivenUp } = options;
  const child = new SupervisedProcess({
    name: "backend",
    origin: "backend",
    command: [...outriggerCommand(), "backend", ...command],
    environment: childEnvironment(options.environment),
    logFile: join(options.directory, "backend.log"),
    isReady,
    readyTimeoutMs,
    graceMs,
    log,
    now,
    onStarted,
    onGivenUp,
  });
  return {
    backend,
    start: () => child.start(),
    whenReady: () => child.whenReady(),
    wasDownSince: (ms) => child.wasDownSince(ms),
    close: () => child.close(),
  };
}

/** Nothing here keeps it running; its calls say when it is out of reach. */
function remote(backend: TrainerBackend): StartedBackend {
  return {
    backend,
    start: async () => {
      await backend.describe();
    },
    whenReady: async () => undefined,
    wasDownSince: () => false,
    close: async () => undefined,
  };
}

/** This program again, by the same Node. */
export function outriggerCommand(): string[] {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, "bin", "outrigger.js"))) folder = dirname(folder);
  return [process.execPath, join(folder, "bin", "outrigger.js")];
}
