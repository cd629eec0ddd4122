import type { AttemptEndReason } from "./attempt-end-reason.ts";
import type { FailurePolicy } from "./failure-policy.ts";

export type RolloutState = "queued" | "running" | "succeeded" | "failed" | "cancelled";

export type Attempt =
  | { readonly attemptId: string; readonly state: "leased" | "started" }
  | { readonly attemptId: string; readonly state: "ended"; readonly reason: AttemptEndReason };

/**
 * Everything that decides what happens next to a rollout; plain data, stored as it is.
 *
 * Example: `{ rolloutId: "r1", state: "succeeded", attempts: [{ attemptId: "r1-1", state: "ended",
 * reason: "evicted" }, { attemptId: "r1-2", state: "ended", reason: "succeeded" }],
 * acceptedAttemptId: "r1-2", isCancelRequested: false }`.
 * The odd case: a rollout whose last allowed attempt was lost to the infrastructure is `failed` and
 * has no `acceptedAttemptId`, so no sample of it exists.
 */
export interface Rollout {
  readonly rolloutId: string;
  readonly state: RolloutState;
  /** In order of lease. At most the last one has not ended. */
  readonly attempts: readonly Attempt[];
  /** The only attempt whose calls may be trained; set when the rollout becomes terminal. */
  readonly acceptedAttemptId?: string;
  readonly isCancelRequested: boolean;
}

/**
 * What can happen to a rollout. `attempt-leased` is the controller's own durable decision and so
 * comes before every report about that attempt; the rest are reports, which may come late, twice,
 * out of order or never (then `lease-expired` comes).
 */
export type RolloutEvent =
  | { readonly type: "attempt-leased"; readonly attemptId: string }
  | { readonly type: "attempt-started"; readonly attemptId: string }
  | {
      readonly type: "attempt-ended";
      readonly attemptId: string;
      readonly reason: AttemptEndReason;
    }
  | { readonly type: "lease-expired"; readonly attemptId: string }
  /** It can never be started (a template that does not render): terminal without an attempt. */
  | { readonly type: "rejected" }
  | { readonly type: "cancel-requested" };

/** Why an event changed nothing. */
export type IgnoredReason =
  | "duplicate"
  | "attempt-unknown"
  | "attempt-ended"
  | "already-running"
  | "rollout-terminal";

export type RolloutTransition =
  | { readonly rollout: Rollout; readonly isChanged: true }
  | { readonly rollout: Rollout; readonly isChanged: false; readonly ignored: IgnoredReason };

type Step<E extends RolloutEvent> = (
  rollout: Rollout,
  event: E,
  policy: FailurePolicy,
) => Rollout | IgnoredReason;

type Row = {
  readonly [T in RolloutEvent["type"]]: Step<Extract<RolloutEvent, { readonly type: T }>>;
};

export function newRollout(rolloutId: string): Rollout {
  return { rolloutId, state: "queued", attempts: [], isCancelRequested: false };
}

export function isTerminal(state: RolloutState): boolean {
  return state === "succeeded" || state === "failed" || state === "cancelled";
}

/** The state that an accepted or final attempt leaves the rollout in. */
const terminalStateOf: Readonly<Record<AttemptEndReason, RolloutState>> = {
  succeeded: "succeeded",
  // A limit of the experiment is a normal way to end; the reward says how good it was.
  truncated: "succeeded",
  "agent-error": "failed",
  "timed-out": "failed",
  evicted: "failed",
  "infra-error": "failed",
  "never-called": "failed",
  cancelled: "cancelled",
};

const ignore =
  (reason: IgnoredReason): Step<RolloutEvent> =>
  () =>
    reason;

function lease(rollout: Rollout, event: { readonly attemptId: string }): Rollout | IgnoredReason {
  if (rollout.attempts.some((a) => a.attemptId === event.attemptId)) return "duplicate";
  const attempts: Attempt[] = [
    ...rollout.attempts,
    { attemptId: event.attemptId, state: "leased" },
  ];
  return { ...rollout, state: "running", attempts };
}

function start(rollout: Rollout, event: { readonly attemptId: string }): Rollout | IgnoredReason {
  const attempt = rollout.attempts.find((a) => a.attemptId === event.attemptId);
  if (attempt === undefined) return "attempt-unknown";
  if (attempt.state !== "leased") {
    return attempt.state === "ended" ? "attempt-ended" : "duplicate";
  }
  return replaceAttempt(rollout, { attemptId: event.attemptId, state: "started" });
}

/** An attempt ends once: whatever is reported first is its reason for ever. */
function end(
  rollout: Rollout,
  event: { readonly attemptId: string; readonly reason: AttemptEndReason },
  policy: FailurePolicy,
): Rollout | IgnoredReason {
  const attempt = rollout.attempts.find((a) => a.attemptId === event.attemptId);
  if (attempt === undefined) return "attempt-unknown";
  if (attempt.state === "ended") {
    return attempt.reason === event.reason ? "duplicate" : "attempt-ended";
  }
  const { attemptId, reason } = event;
  const ended = replaceAttempt(rollout, { attemptId, state: "ended", reason });
  const rule = policy[reason];
  const endedSoCount = ended.attempts.filter(
    (a) => a.state === "ended" && a.reason === reason,
  ).length;
  if (endedSoCount <= rule.maxRequeues) {
    return { ...ended, state: rollout.isCancelRequested ? "cancelled" : "queued" };
  }
  const state = terminalStateOf[reason];
  return rule.isTrainable ? { ...ended, state, acceptedAttemptId: attemptId } : { ...ended, state };
}

const expire: Step<Extract<RolloutEvent, { readonly type: "lease-expired" }>> = (
  rollout,
  event,
  policy,
) => end(rollout, { attemptId: event.attemptId, reason: "infra-error" }, policy);

/** While an attempt runs its own end decides: a success that wins the race is kept. */
const requestCancel: Step<RolloutEvent> = (rollout) =>
  rollout.isCancelRequested ? "duplicate" : { ...rollout, isCancelRequested: true };

const terminalRow: Row = {
  "attempt-leased": ignore("rollout-terminal"),
  "attempt-started": ignore("rollout-terminal"),
  "attempt-ended": ignore("rollout-terminal"),
  "lease-expired": ignore("rollout-terminal"),
  rejected: ignore("rollout-terminal"),
  "cancel-requested": ignore("rollout-terminal"),
};

/** The transitions. Terminal states are absorbing: nothing that comes late changes them. */
const transitions: Readonly<Record<RolloutState, Row>> = {
  queued: {
    "attempt-leased": lease,
    "attempt-started": start,
    "attempt-ended": end,
    "lease-expired": expire,
    rejected: (rollout) => ({ ...rollout, state: "failed" }),
    "cancel-requested": (rollout) => ({ ...rollout, state: "cancelled", isCancelRequested: true }),
  },
  running: {
    "attempt-leased": (rollout, event) =>
      rollout.attempts.some((a) => a.attemptId === event.attemptId)
        ? "duplicate"
        : "already-running",
    "attempt-started": start,
    "attempt-ended": end,
    "lease-expired": expire,
    rejected: ignore("already-running"),
    "cancel-requested": requestCancel,
  },
  succeeded: terminalRow,
  failed: terminalRow,
  cancelled: terminalRow,
};

/**
 * The next state of a rollout. Pure and idempotent: applying an event twice equals applying it
 * once, and reports about an attempt have one result in whatever order they come.
 */
export function nextRolloutState(
  rollout: Rollout,
  event: RolloutEvent,
  policy: FailurePolicy,
): RolloutTransition {
  // The table pairs each event type with its step; TypeScript cannot follow the pairing.
  const step = transitions[rollout.state][event.type] as Step<RolloutEvent>;
  const next = step(rollout, event, policy);
  return typeof next === "string"
    ? { rollout, isChanged: false, ignored: next }
    : { rollout: next, isChanged: true };
}

function replaceAttempt(rollout: Rollout, attempt: Attempt): Rollout {
  const attempts = rollout.attempts.map((a) => (a.attemptId === attempt.attemptId ? attempt : a));
  return { ...rollout, attempts };
}
