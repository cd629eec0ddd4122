import { OutriggerError } from "../../core/outrigger-error.ts";
import type { AttemptEndReason } from "../../core/rollouts/attempt-end-reason.ts";
import type { FailurePolicy } from "../../core/rollouts/failure-policy.ts";
import type { CallCounts, CallStore, StoredEvent } from "../store/call-store.ts";
import type {
  NewRollout,
  RolloutFilter,
  RolloutStore,
  StoredAttempt,
  StoredRollout,
} from "../store/rollout-store.ts";

export interface RolloutView {
  readonly rollout: StoredRollout;
  readonly attempts: readonly StoredAttempt[];
  readonly calls: CallCounts;
}

export interface RolloutServiceOptions {
  readonly rollouts: RolloutStore;
  readonly calls: CallStore;
  readonly policy: FailurePolicy;
  /** Lease owner of the attempts that this program runs and grades itself; absent: it runs none. */
  readonly ownRunner?: string;
  readonly now: () => number;
  /** Something became queued. */
  readonly onQueued: () => void;
  /** A rollout's state changed through this service. */
  readonly onChanged: (rolloutId: string, isOver: boolean) => void;
  /** Ends the attempt that runs here; undefined where attempts run elsewhere. */
  stopAttempt?(rolloutId: string): Promise<void>;
}

/** What people, evaluators and foreign trainers may do with rollouts; every API is built on it. */
export interface RolloutService {
  create(rollouts: readonly NewRollout[]): Promise<readonly StoredRollout[]>;
  list(filter: RolloutFilter): Promise<readonly StoredRollout[]>;
  listTerminal(afterTerminalSeq: number, limit: number): Promise<readonly StoredRollout[]>;
  /** undefined when there is none. */
  get(rolloutId: string): Promise<StoredRollout | undefined>;
  show(rolloutId: string): Promise<RolloutView>;
  cancel(rolloutId: string): Promise<StoredRollout>;
  /** An attempt that runs somewhere else; gives its id. */
  startAttempt(rolloutId: string, owner: string, leaseMs: number): Promise<string>;
  /**
   * For what comes from outside: whose attempts are run here, theirs are not to be started, ended or
   * rewarded there.
   *
   * @throws OutriggerError `attempt-ours` (user)
   */
  refuseOwn(rolloutId: string, attemptId?: string): Promise<void>;
  renewAttempts(owner: string, leaseMs: number): Promise<void>;
  endAttempt(
    rolloutId: string,
    attemptId: string,
    end: {
      readonly reason: AttemptEndReason;
      readonly reward?: number;
      readonly message?: string;
    },
  ): Promise<StoredRollout>;
  addEvent(event: StoredEvent): Promise<void>;
  events(rolloutId: string, attemptId: string): Promise<readonly StoredEvent[]>;
  remove(rolloutId: string): Promise<void>;
}

export function createRolloutService(options: RolloutServiceOptions): RolloutService {
  const { rollouts, calls, policy, now } = options;
  const known = async (rolloutId: string): Promise<StoredRollout> => {
    const rollout = await rollouts.get(rolloutId);
    if (rollout !== undefined) return rollout;
    throw new OutriggerError("rollout-unknown", `there is no rollout ${rolloutId}`, {
      origin: "user",
      hint: "`outrigger rollouts list` shows the ids.",
    });
  };
  const announce = async (rolloutId: string): Promise<StoredRollout> => {
    const rollout = await known(rolloutId);
    options.onChanged(rolloutId, rollout.terminalSeq !== undefined);
    if (rollout.state === "queued") options.onQueued();
    return rollout;
  };
  return {
    create: async (wanted) => {
      const created = await rollouts.create(wanted, now());
      options.onQueued();
      return created;
    },
    list: (filter) => rollouts.list(filter),
    listTerminal: (after, limit) => rollouts.listTerminal(after, limit),
    get: (rolloutId) => rollouts.get(rolloutId),
    show: async (rolloutId) => ({
      rollout: await known(rolloutId),
      attempts: await rollouts.attempts(rolloutId),
      calls: await calls.callCounts(rolloutId),
    }),
    cancel: async (rolloutId) => {
      await known(rolloutId);
      await rollouts.end(rolloutId, { type: "cancel-requested" }, {}, policy, now());
      await options.stopAttempt?.(rolloutId);
      return announce(rolloutId);
    },
    startAttempt: async (rolloutId, owner, leaseMs) => {
      const { rollout, state } = await known(rolloutId);
      const attemptId = `${rolloutId}.${rollout.attempts.length + 1}`;
      const lease = { owner, expiresAtMs: now() + leaseMs };
      const transition = await rollouts.lease(rolloutId, attemptId, lease, policy, now());
      if (transition.isChanged) {
        options.onChanged(rolloutId, false);
        return attemptId;
      }
      throw new OutriggerError("rollout-not-queued", `rollout ${rolloutId} is ${state}`, {
        origin: "user",
        hint: "Only a queued rollout can be attempted.",
      });
    },
    refuseOwn: async (rolloutId, attemptId) => {
      const { ownRunner } = options;
      if (ownRunner === undefined) return;
      await known(rolloutId);
      const attempts = await rollouts.attempts(rolloutId);
      const owner = attempts.find((attempt) => attempt.attemptId === attemptId)?.leaseOwner;
      if (attemptId !== undefined && owner !== ownRunner) return;
      const message =
        attemptId === undefined
          ? `rollout ${rolloutId} is for this controller's own runner`
          : `attempt ${attemptId} is run by this controller: its runner ends it, its verifier grades it`;
      throw new OutriggerError("attempt-ours", message, {
        origin: "user",
        hint: "A rollout can be cancelled; attempts from outside need `outrigger controller`.",
      });
    },
    renewAttempts: (owner, leaseMs) => rollouts.renewLeases(owner, now() + leaseMs),
    endAttempt: async (rolloutId, attemptId, { reason, reward, message }) => {
      await known(rolloutId);
      const event = { type: "attempt-ended", attemptId, reason } as const;
      const details = {
        ...(reward !== undefined && { reward }),
        ...(message !== undefined && { message }),
      };
      await rollouts.end(rolloutId, event, details, policy, now());
      return announce(rolloutId);
    },
    addEvent: async (event) => {
      await known(event.rolloutId);
      await calls.appendEvents([event]);
    },
    events: (rolloutId, attemptId) => calls.eventsOfAttempt(rolloutId, attemptId),
    remove: (rolloutId) => rollouts.remove(rolloutId),
  };
}
