import type { Experiment } from "../controller/experiment/load-experiment.ts";
import type { ProcessRequest, RunProcesses } from "../controller/run-processes.ts";
import type { Logger } from "../runtime/log.ts";
import { openExperimentBackend } from "./start-backend.ts";
import { noteChild, superviseSidecar } from "./supervise-sidecar.ts";

/** How long the sidecar may take to see that a restarted engine serves again. */
const engineRecoveryMs = 5_000;

/** Starts and keeps running what stands beside the controller: one sidecar and the backend. */
export async function startRunProcesses(
  experiment: Experiment,
  request: ProcessRequest,
  log: Logger,
  now: () => number,
): Promise<RunProcesses> {
  const sidecar = await superviseSidecar({
    request,
    engineKind: "native",
    readiness: "policy",
    log,
    now,
  });
  const trainer = await openExperimentBackend(experiment, {
    directory: request.directory,
    seed: request.seed,
    environment: request.environment,
    log,
    now,
    onStarted: (pid) => noteChild(request, "backend", pid),
    onGivenUp: request.onGivenUp,
  });
  const { backend } = trainer;
  const close = async (): Promise<void> => {
    await Promise.all([sidecar.close(), trainer.close()]);
  };
  try {
    await Promise.all([sidecar.start(), trainer.start()]);
  } catch (error) {
    await Promise.all([backend.close(), close()]);
    throw error;
  }
  return {
    backend,
    sidecarUrl: sidecar.url,
    backendReady: () => trainer.whenReady(),
    sidecarReady: () => sidecar.whenReady(),
    crashedSince: (ms) => {
      const down = new Set<"sidecar" | "backend">();
      if (sidecar.wasDownSince(ms)) down.add("sidecar");
      if (trainer.wasDownSince(ms - engineRecoveryMs)) down.add("backend");
      return down;
    },
    close,
  };
}
