import type { AttemptEndReason } from "../../core/rollouts/attempt-end-reason.ts";
import type { ProcessEnd } from "../runners/run-process.ts";

/** Why an attempt was asked to stop before it ended by itself. */
export type StopCause = "cancelled" | "tail-cut" | "controller-stopped";

export interface AttemptFacts {
  readonly end: ProcessEnd;
  /** Set when `end` is `cancelled`. */
  readonly stopCause?: StopCause;
  /** Model calls whose record arrived. */
  readonly callCount: number;
  /** False when records may still be under way. */
  readonly isSettled: boolean;
  /** Processes of ours that were down while the attempt ran. */
  readonly crashed: ReadonlySet<"sidecar" | "backend">;
}

export interface AttemptEnd {
  readonly reason: AttemptEndReason;
  /** Finer than the reason, machine-readable. */
  readonly detail?: string;
  readonly message?: string;
}

/**
 * What an ended attempt counts as, before anything is graded.
 *
 * A crash of the sidecar taints every attempt that ran then: a call may have been answered whose
 * record was not yet on disk. A crash of the backend is the infrastructure's fault only where the
 * harness did not get over it. SIGKILL that we did not send is the system's (out of memory, an
 * operator): a harness cannot fail that way by itself.
 */
export function decideAttemptEnd(facts: AttemptFacts): AttemptEnd {
  const { end } = facts;
  if (end.kind === "cancelled") return stopped(facts.stopCause ?? "cancelled");
  if (end.kind === "not-started") {
    return { reason: "infra-error", detail: "harness-not-started", message: end.message };
  }
  if (facts.crashed.has("sidecar")) {
    return {
      reason: "infra-error",
      detail: "sidecar-restarted",
      message: "the sidecar died while the attempt ran",
    };
  }
  if (!facts.isSettled) {
    return {
      reason: "infra-error",
      detail: "records-missing",
      message: "the sidecar did not hand over the attempt's records in time",
    };
  }
  const isGood = end.kind === "exited" && end.exitCode === 0 && facts.callCount > 0;
  if (facts.crashed.has("backend") && !isGood) {
    return {
      reason: "infra-error",
      detail: "backend-restarted",
      message: "the backend died while the attempt ran, and the harness did not get over it",
    };
  }
  if (end.kind === "timed-out") return { reason: "timed-out" };
  if (end.kind === "killed" && end.signal === "SIGKILL") {
    return {
      reason: "infra-error",
      detail: "killed-by-system",
      message: "the harness was killed by SIGKILL, which Outrigger did not send",
    };
  }
  const how = end.kind === "killed" ? `killed-by-${end.signal}` : `exit-code-${end.exitCode}`;
  if (facts.callCount === 0) {
    return {
      reason: "never-called",
      detail: how,
      message: `the harness ended (${how}) without a single model call: is it pointed at the sidecar?`,
    };
  }
  return isGood ? { reason: "succeeded" } : { reason: "agent-error", detail: how };
}

function stopped(cause: StopCause): AttemptEnd {
  switch (cause) {
    case "cancelled":
      return { reason: "cancelled" };
    case "tail-cut":
      return { reason: "truncated", detail: "tail-cut" };
    case "controller-stopped":
      return {
        reason: "infra-error",
        detail: "controller-stopped",
        message: "the controller was stopped while the attempt ran",
      };
  }
}
