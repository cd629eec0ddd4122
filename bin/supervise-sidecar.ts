import { join } from "node:path";
import type { ProcessRequest } from "../controller/run-experiment.ts";
import { identifyProcess } from "../controller/runners/process-identity.ts";
import type { SidecarHandle } from "../controller/serve-experiment.ts";
import { freePort } from "../runtime/free-port.ts";
import type { Logger } from "../runtime/log.ts";
import { childEnvironment, SupervisedProcess } from "../runtime/supervise-process.ts";
import { sidecarCommand } from "./sidecar-command.ts";

const readyTimeoutMs = 120_000;
const graceMs = 20_000;

/** One sidecar on loopback, started again when it dies. Up as soon as it listens: the trainer outside says which engines there are. */
export async function superviseSidecar(
  request: ProcessRequest,
  log: Logger,
  now: () => number,
): Promise<SidecarHandle> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const sidecar = new SupervisedProcess({
    name: "sidecar",
    origin: "sidecar",
    command: sidecarCommand(port, request),
    environment: childEnvironment({
      ...request.environment,
      OUTRIGGER_SIDECAR_CONTROLLER_TOKEN: request.sidecarToken,
      OUTRIGGER_SIDECAR_SIDECAR_ID: "local",
    }),
    logFile: join(request.directory, "sidecar.log"),
    isReady: async (signal) => (await fetch(`${url}/healthz`, { signal })).ok,
    readyTimeoutMs,
    graceMs,
    log,
    now,
    onStarted: (pid) => {
      const identity = identifyProcess(pid);
      if (identity !== undefined) request.noteProcess("sidecar", identity);
    },
    onGivenUp: request.onGivenUp,
  });
  await sidecar.start();
  return {
    url,
    whenReady: () => sidecar.whenReady(),
    wasDownSince: (ms) => sidecar.wasDownSince(ms),
    close: () => sidecar.close(),
  };
}
