/**
 * How an attempt ended; every attempt ends in exactly one of these.
 *
 * | reason | meaning | who says so |
 * |---|---|---|
 * | succeeded | the harness exited by itself and well (the answer may still be wrong) | runner |
 * | agent-error | the harness exited by itself with an error | runner |
 * | timed-out | the attempt's own deadline passed while the agent was working | runner |
 * | truncated | a limit on turns or tokens of the experiment cut the attempt | runner |
 * | evicted | the cluster took the attempt away: preemption, node drain, out of memory of the node | runner |
 * | infra-error | something of ours or the cluster failed: image pull, lost lease, sidecar crash | runner, controller |
 * | never-called | the harness ended without a single model call | controller |
 * | cancelled | a person or the scheduler asked for it | runner |
 */
export type AttemptEndReason =
  | "succeeded"
  | "agent-error"
  | "timed-out"
  | "truncated"
  | "evicted"
  | "infra-error"
  | "never-called"
  | "cancelled";

export const attemptEndReasons: readonly AttemptEndReason[] = [
  "succeeded",
  "agent-error",
  "timed-out",
  "truncated",
  "evicted",
  "infra-error",
  "never-called",
  "cancelled",
];
