import { join } from "node:path";
import type { ProcessRequest } from "../controller/run-processes.ts";
import { identifyProcess } from "../controller/runners/process-identity.ts";
import type { SidecarHandle } from "../controller/serve-experiment.ts";
import { freePort } from "../runtime/free-port.ts";
import type { Logger } from "../runtime/log.ts";
import { childEnvironment, SupervisedProcess } from "../runtime/supervise-process.ts";
import { sidecarCommand } from "./sidecar-command.ts";

export interface SuperviseSidecarOptions {
  readonly request: ProcessRequest;
  /** `native` where the policy server is Outrigger's own. */
  readonly engineKind?: "native";
  /**
   * What is asked to know that it is up. `policy`: after a restart the policy is known, and must be
   * reachable; the first start comes before there is one. `listening`: who trains says later which
   * engines there are.
   */
  readonly readiness: "policy" | "listening";
  readonly log: Logger;
  readonly now: () => number;
}

export interface SupervisedSidecar extends SidecarHandle {
  /** Resolves when it is up. */
  start(): Promise<void>;
}

const readyTimeoutMs = 120_000;
const graceMs = 20_000;

/** The one sidecar beside a controller on this machine, started again when it dies. */
export async function superviseSidecar(
  options: SuperviseSidecarOptions,
): Promise<SupervisedSidecar> {
  const { request, engineKind, readiness, log, now } = options;
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  let hasStarted = false;
  const sidecar = new SupervisedProcess({
    name: "sidecar",
    origin: "sidecar",
    command: sidecarCommand(port, request),
    environment: childEnvironment({
      ...request.environment,
      OUTRIGGER_SIDECAR_CONTROLLER_TOKEN: request.sidecarToken,
      OUTRIGGER_SIDECAR_SIDECAR_ID: "local",
      ...(engineKind !== undefined && { OUTRIGGER_SIDECAR_ENGINES_KIND: engineKind }),
    }),
    logFile: join(request.directory, "sidecar.log"),
    isReady: async (signal) => {
      const path = readiness === "policy" && hasStarted ? "readyz" : "healthz";
      return (await fetch(`${url}/${path}`, { signal })).ok;
    },
    readyTimeoutMs,
    graceMs,
    log,
    now,
    onStarted: (pid) => noteChild(request, "sidecar", pid),
    onGivenUp: request.onGivenUp,
  });
  return {
    url,
    start: async () => {
      await sidecar.start();
      hasStarted = true;
    },
    whenReady: () => sidecar.whenReady(),
    wasDownSince: (ms) => sidecar.wasDownSince(ms),
    close: () => sidecar.close(),
  };
}

/** For the session that comes after a kill. */
export function noteChild(request: ProcessRequest, name: string, pid: number): void {
  const identity = identifyProcess(pid);
  if (identity !== undefined) request.noteProcess(name, identity);
}
