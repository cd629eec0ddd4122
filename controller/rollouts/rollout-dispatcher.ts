import { join } from "node:path";
import type { FailurePolicy } from "../../core/rollouts/failure-policy.ts";
import { isTerminal } from "../../core/rollouts/rollout-state.ts";
import type { Logger } from "../../runtime/log.ts";
import type { ProcessIdentity } from "../runners/process-identity.ts";
import type { AttemptEndDetails, RolloutStore, StoredRollout } from "../store/rollout-store.ts";
import type { AttemptEnd, StopCause } from "./decide-attempt-end.ts";
import { StopAttempt } from "./run-attempt.ts";

export interface DispatcherOptions {
  readonly store: RolloutStore;
  readonly policy: FailurePolicy;
  readonly concurrency: number;
  /** Names this process in leases. */
  readonly owner: string;
  readonly leaseMs: number;
  /** Each attempt gets a directory of its own below this one. */
  readonly directory: string;
  readonly log: Logger;
  readonly now: () => number;
  runAttempt(
    rollout: StoredRollout,
    attemptId: string,
    directory: string,
    signal: AbortSignal,
    onStarted: (identity: ProcessIdentity) => void,
  ): Promise<AttemptEnd & AttemptEndDetails>;
  /** After every change of a rollout's state. */
  readonly onChanged: (rolloutId: string, isOver: boolean) => void;
  /** Something that is not the attempt's fault and that going on cannot cure. */
  readonly onFatal: (error: unknown) => void;
}

/**
 * Takes queued rollouts from the store, oldest first, and runs at most `concurrency` attempts.
 * Waits for: `wake()` (rollouts were created or re-queued) or the end of an attempt. A lease is
 * durable before anything is started and renewed while the attempt runs; a controller that comes
 * after a kill ends what it finds open as lost (`lease-expired`), which re-queues it.
 */
export class RolloutDispatcher {
  readonly #options: DispatcherOptions;
  readonly #running = new Map<string, AbortController>();
  readonly #attempts = new Set<Promise<void>>();
  readonly #renewal: NodeJS.Timeout;
  #filling: Promise<void> | undefined;
  #isWakePending = false;
  #isClosed = false;

  constructor(options: DispatcherOptions) {
    this.#options = options;
    this.#renewal = setInterval(() => this.#renew(), options.leaseMs / 3);
  }

  get runningCount(): number {
    return this.#running.size;
  }

  /** Looks for queued rollouts; returns at once. */
  wake(): void {
    if (this.#isClosed) return;
    if (this.#filling !== undefined) {
      this.#isWakePending = true;
      return;
    }
    this.#filling = this.#fill()
      .catch((error: unknown) => this.#options.onFatal(error))
      .finally(() => {
        this.#filling = undefined;
        if (this.#isWakePending) {
          this.#isWakePending = false;
          this.wake();
        }
      });
  }

  /** Ends the running attempt of a rollout, or makes a queued one terminal. */
  async stop(rolloutId: string, cause: Exclude<StopCause, "controller-stopped">): Promise<void> {
    const { store, policy, now } = this.#options;
    const running = this.#running.get(rolloutId);
    if (cause === "cancelled" || running === undefined) {
      await store.end(rolloutId, { type: "cancel-requested" }, {}, policy, now());
    }
    if (running === undefined) this.#options.onChanged(rolloutId, true);
    else running.abort(new StopAttempt(cause));
  }

  /** Starts nothing more; resolves when the running attempts have ended by themselves. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#filling;
    await Promise.all(this.#attempts);
    clearInterval(this.#renewal);
  }

  /** Ends the running attempts now; they are re-queued when the run is resumed. */
  async destroy(): Promise<void> {
    this.#isClosed = true;
    for (const running of this.#running.values()) {
      running.abort(new StopAttempt("controller-stopped"));
    }
    await this.close();
  }

  async #fill(): Promise<void> {
    const { store, concurrency } = this.#options;
    while (!this.#isClosed && this.#running.size < concurrency) {
      const limit = concurrency - this.#running.size;
      const queued = await store.list({ states: ["queued"], limit });
      if (queued.length === 0) return;
      for (const rollout of queued) {
        if (!this.#isClosed) await this.#start(rollout);
      }
    }
  }

  async #start(rollout: StoredRollout): Promise<void> {
    const { store, policy, owner, leaseMs, now } = this.#options;
    const { rolloutId } = rollout;
    const number = rollout.rollout.attempts.length + 1;
    const attemptId = `${rolloutId}.${number}`;
    const directory = join(this.#options.directory, rolloutId, String(number));
    const lease = { owner, expiresAtMs: now() + leaseMs, directory };
    const leased = await store.lease(rolloutId, attemptId, lease, policy, now());
    if (!leased.isChanged) return;
    const controller = new AbortController();
    this.#running.set(rolloutId, controller);
    this.#options.onChanged(rolloutId, false);
    const attempt = this.#run(rollout, attemptId, directory, controller.signal)
      .catch((error: unknown) => this.#options.onFatal(error))
      .finally(() => {
        this.#attempts.delete(attempt);
        this.wake();
      });
    this.#attempts.add(attempt);
  }

  async #run(
    rollout: StoredRollout,
    attemptId: string,
    directory: string,
    signal: AbortSignal,
  ): Promise<void> {
    const { store, policy, now, log } = this.#options;
    const { rolloutId } = rollout;
    const noted: Promise<void>[] = [];
    const onStarted = (identity: ProcessIdentity): void => {
      noted.push(store.markStarted(attemptId, identity, now()));
    };
    try {
      const { reason, ...details } = await this.#options.runAttempt(
        rollout,
        attemptId,
        directory,
        signal,
        onStarted,
      );
      await Promise.all(noted);
      if (policy[reason].isAlarm) {
        log.error(
          { rolloutId, attemptId, reason, ...withoutGrade(details) },
          "attempt ended badly",
        );
      } else {
        log.debug({ rolloutId, attemptId, reason, ...withoutGrade(details) }, "attempt ended");
      }
      const event = { type: "attempt-ended", attemptId, reason } as const;
      const { rollout: after } = await store.end(rolloutId, event, details, policy, now());
      this.#running.delete(rolloutId);
      this.#options.onChanged(rolloutId, isTerminal(after.state));
    } finally {
      this.#running.delete(rolloutId);
    }
  }

  #renew(): void {
    const { store, owner, leaseMs, now, onFatal } = this.#options;
    store.renewLeases(owner, now() + leaseMs).catch(onFatal);
  }
}

function withoutGrade(details: AttemptEndDetails): Pick<AttemptEndDetails, "detail" | "message"> {
  const { detail, message } = details;
  return {
    ...(detail !== undefined && { detail }),
    ...(message !== undefined && { message }),
  };
}
