import { join } from "node:path";
import type { Experiment } from "../controller/experiment/load-experiment.ts";
import type { ProcessRequest, RunProcesses } from "../controller/run-experiment.ts";
import { identifyProcess } from "../controller/runners/process-identity.ts";
import { freePort } from "../runtime/free-port.ts";
import type { Logger } from "../runtime/log.ts";
import { childEnvironment, SupervisedProcess } from "../runtime/supervise-process.ts";
import { sidecarCommand } from "./sidecar-command.ts";
import { openExperimentBackend } from "./start-backend.ts";

const readyTimeoutMs = 120_000;
const graceMs = 20_000;
/** How long the sidecar may take to see that a restarted engine serves again. */
const engineRecoveryMs = 5_000;

/** Starts and keeps running what stands beside the controller: one sidecar and the backend. */
export async function startRunProcesses(
  experiment: Experiment,
  request: ProcessRequest,
  log: Logger,
  now: () => number,
): Promise<RunProcesses> {
  const port = await freePort();
  const sidecarUrl = `http://127.0.0.1:${port}`;
  const common = { readyTimeoutMs, graceMs, log, now, onGivenUp: request.onGivenUp };
  let hasStarted = false;
  const sidecar = new SupervisedProcess({
    ...common,
    name: "sidecar",
    origin: "sidecar",
    command: sidecarCommand(port, request),
    environment: childEnvironment({
      ...request.environment,
      OUTRIGGER_SIDECAR_CONTROLLER_TOKEN: request.sidecarToken,
      OUTRIGGER_SIDECAR_SIDECAR_ID: "local",
      OUTRIGGER_SIDECAR_ENGINES_KIND: "native",
    }),
    logFile: join(request.directory, "sidecar.log"),
    // At first there is no policy yet; after a restart it is known, and must be reachable.
    isReady: async (signal) =>
      (await fetch(`${sidecarUrl}/${hasStarted ? "readyz" : "healthz"}`, { signal })).ok,
    onStarted: (pid) => noteProcess(request, "sidecar", pid),
  });
  const trainer = await openExperimentBackend(experiment, {
    directory: request.directory,
    seed: request.seed,
    environment: request.environment,
    log,
    now,
    onStarted: (pid) => noteProcess(request, "backend", pid),
    onGivenUp: request.onGivenUp,
  });
  const { backend } = trainer;
  try {
    await Promise.all([sidecar.start(), trainer.start()]);
    hasStarted = true;
  } catch (error) {
    await Promise.all([backend.close(), sidecar.close(), trainer.close()]);
    throw error;
  }
  return {
    backend,
    sidecarUrl,
    backendReady: () => trainer.whenReady(),
    sidecarReady: () => sidecar.whenReady(),
    crashedSince: (ms) => {
      const down = new Set<"sidecar" | "backend">();
      if (sidecar.wasDownSince(ms)) down.add("sidecar");
      if (trainer.wasDownSince(ms - engineRecoveryMs)) down.add("backend");
      return down;
    },
    close: async () => {
      await Promise.all([sidecar.close(), trainer.close()]);
    },
  };
}

function noteProcess(request: ProcessRequest, name: string, pid: number): void {
  const identity = identifyProcess(pid);
  if (identity !== undefined) request.noteProcess(name, identity);
}
