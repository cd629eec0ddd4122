import type { OutriggerError } from "../core/outrigger-error.ts";
import type { TrainerBackend } from "../core/trainer-backend.ts";
import type { AttemptProcesses } from "./rollouts/open-local-attempts.ts";
import type { ProcessIdentity } from "./runners/process-identity.ts";

/** The processes beside the controller; who starts them knows what they are. */
export interface RunProcesses extends AttemptProcesses {
  readonly backend: TrainerBackend;
  close(): Promise<void>;
}

export interface ProcessRequest {
  readonly directory: string;
  readonly runId: string;
  readonly seed: number;
  readonly grpcAddress: string;
  /** Capability of scope `sidecar`. */
  readonly sidecarToken: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly noteProcess: (name: string, identity: ProcessIdentity) => void;
  /** A process that cannot be kept running. */
  readonly onGivenUp: (error: OutriggerError) => void;
}
