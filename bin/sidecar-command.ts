import { join } from "node:path";
import type { ProcessRequest } from "../controller/run-processes.ts";
import { outriggerCommand } from "./start-backend.ts";

/** The command line of the one sidecar that stands beside a controller on this machine. */
export function sidecarCommand(port: number, { grpcAddress, directory }: ProcessRequest): string[] {
  const flags = {
    host: "127.0.0.1",
    port: String(port),
    controller: grpcAddress,
    "spool-dir": join(directory, "spool"),
    "log-level": "warn",
  };
  return [
    ...outriggerCommand(),
    "sidecar",
    ...Object.entries(flags).flatMap(([name, value]) => [`--${name}`, value]),
    "--exit-with-parent",
  ];
}
