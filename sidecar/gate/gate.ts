import { Roster, type Rostered } from "../../core/roster.ts";

/** What the controller wants of the gate; see `GateCommand` of the sample stream. */
export interface GateOrder {
  readonly commandId: string;
  readonly paused: boolean;
  readonly reason: string;
  /** How long a held call waits before it is refused. */
  readonly holdLimitMs: number;
  /** After this long a call that has sent nothing is aborted and issued anew; 0 lets it finish. */
  readonly drainLimitMs: number;
}

export interface GateStatus {
  readonly commandId: string;
  readonly paused: boolean;
  /** Paused and no call at an engine. */
  readonly drained: boolean;
  readonly inFlight: number;
  readonly held: number;
  readonly reason: string;
}

/** A call's leave to be at an engine; given back exactly once with `leave`. */
export interface Passage extends Rostered {
  /** Called when the drain limit passes; true when the call aborts its engine request. */
  onDrainLimit: (() => boolean) | undefined;
  leave(): void;
}

export type Admission =
  | { readonly kind: "admitted"; readonly passage: Passage; readonly heldMs: number }
  | { readonly kind: "hold-limit"; readonly heldMs: number }
  | { readonly kind: "gone"; readonly heldMs: number };

export interface GateClock {
  nowMs(): number;
  /** Calls back once after `ms`; gives the way to cancel. */
  schedule(ms: number, callback: () => void): () => void;
}

interface Waiting {
  readonly sinceMs: number;
  readonly settle: (admission: Admission) => void;
  readonly cancelTimer: () => void;
}

/**
 * The switch that pauses, holds and drains model calls around a weight update.
 * Invariant: while it is paused, `enter` admits nobody. Consumes orders and calls; held calls wait
 * for the next order that opens it, their hold limit, or their harness's going away.
 */
export class Gate {
  readonly #clock: GateClock;
  readonly #onChange: (status: GateStatus) => void;
  readonly #inFlight = new Roster<Passage>();
  readonly #waiting = new Set<Waiting>();
  #order: GateOrder = {
    commandId: "",
    paused: false,
    reason: "",
    holdLimitMs: 0,
    drainLimitMs: 0,
  };
  #cancelDrainTimer: (() => void) | undefined;

  constructor(clock: GateClock, onChange: (status: GateStatus) => void) {
    this.#clock = clock;
    this.#onChange = onChange;
  }

  get isPaused(): boolean {
    return this.#order.paused;
  }

  status(): GateStatus {
    const { commandId, paused, reason } = this.#order;
    return {
      commandId,
      paused,
      reason,
      drained: paused && this.#inFlight.size === 0,
      inFlight: this.#inFlight.size,
      held: this.#waiting.size,
    };
  }

  /** Orders are idempotent; a pause during a pause takes the newer limits for new calls. */
  apply(order: GateOrder): void {
    this.#order = order;
    this.#cancelDrainTimer?.();
    this.#cancelDrainTimer = undefined;
    if (order.paused) {
      if (order.drainLimitMs > 0 && this.#inFlight.size > 0) {
        this.#cancelDrainTimer = this.#clock.schedule(order.drainLimitMs, () =>
          this.#abortSilent(),
        );
      }
    } else {
      for (const waiting of this.#waiting) {
        this.#release(waiting, (heldMs) => ({
          kind: "admitted",
          passage: this.#admit(),
          heldMs,
        }));
      }
    }
    this.#onChange(this.status());
  }

  /** When to try again after a hold limit: the pause may take as long again. */
  get retryAfterMs(): number {
    return Math.min(60_000, Math.max(1_000, this.#order.holdLimitMs / 4));
  }

  /** Admission at once when the gate is open. */
  tryEnter(): Passage | undefined {
    return this.#order.paused ? undefined : this.#admit();
  }

  /**
   * Waits until the gate opens. A call that is issued anew brings the time for which it was held
   * before: it does not start its limit again.
   */
  enter(signal: AbortSignal, heldBeforeMs = 0): Promise<Admission> {
    const sinceMs = this.#clock.nowMs() - heldBeforeMs;
    const passage = this.tryEnter();
    if (passage !== undefined) {
      return Promise.resolve({ kind: "admitted", passage, heldMs: this.#clock.nowMs() - sinceMs });
    }
    if (signal.aborted) return Promise.resolve({ kind: "gone", heldMs: 0 });
    return new Promise((resolve) => {
      const onAbort = (): void => this.#release(waiting, (heldMs) => ({ kind: "gone", heldMs }));
      const leftMs = Math.max(0, this.#order.holdLimitMs - (this.#clock.nowMs() - sinceMs));
      const waiting: Waiting = {
        sinceMs,
        cancelTimer: this.#clock.schedule(leftMs, () =>
          this.#release(waiting, (heldMs) => ({ kind: "hold-limit", heldMs })),
        ),
        settle: (admission) => {
          signal.removeEventListener("abort", onAbort);
          resolve(admission);
        },
      };
      signal.addEventListener("abort", onAbort, { once: true });
      this.#waiting.add(waiting);
    });
  }

  /** Lets nobody wait any longer: held calls are refused, as at their hold limit. */
  close(): void {
    this.#cancelDrainTimer?.();
    for (const waiting of this.#waiting) {
      this.#release(waiting, (heldMs) => ({ kind: "hold-limit", heldMs }));
    }
  }

  #admit(): Passage {
    const passage: Passage = {
      rosterPlace: -1,
      onDrainLimit: undefined,
      leave: () => {
        if (!this.#inFlight.delete(passage)) return;
        if (this.#order.paused) this.#onChange(this.status());
      },
    };
    this.#inFlight.add(passage);
    return passage;
  }

  #release(waiting: Waiting, admission: (heldMs: number) => Admission): void {
    if (!this.#waiting.delete(waiting)) return;
    waiting.cancelTimer();
    waiting.settle(admission(this.#clock.nowMs() - waiting.sinceMs));
  }

  #abortSilent(): void {
    for (const passage of this.#inFlight.all()) {
      if (passage.onDrainLimit?.() === true) passage.leave();
    }
  }
}

export const systemGateClock: GateClock = {
  nowMs: () => Date.now(),
  schedule: (ms, callback) => {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
};
