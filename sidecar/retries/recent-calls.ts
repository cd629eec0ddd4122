import { decideRetry, type EarlierCall, type RetryDecision } from "./decide-retry.ts";

export interface RecentCallsOptions {
  readonly windowMs: number;
  /** Request bodies and kept answers together; the oldest ended calls go first. */
  readonly maxBytes: number;
  readonly nowMs: () => number;
}

interface Entry<C extends EarlierCall> {
  readonly key: string;
  readonly call: C;
  bytes: number;
  isEnded: boolean;
  endedAtMs: number;
  /** Neighbours in the order of ending. */
  before: Entry<C> | undefined;
  after: Entry<C> | undefined;
}

/** Ended calls kept per rollout and route: enough for the retries of parallel calls. */
const maxEndedPerKey = 4;
/** Ended calls kept in all: each takes some memory beside its body and answer. */
const maxEnded = 1_024;

/**
 * The calls that a retry may mean: those in flight, and recently ended ones. Bounded by bytes, by
 * count and by age; a call that fell out is sampled again like any other.
 */
export class RecentCalls<C extends EarlierCall> {
  readonly #options: RecentCallsOptions;
  readonly #byKey = new Map<string, Entry<C>[]>();
  #oldest: Entry<C> | undefined;
  #latest: Entry<C> | undefined;
  #endedCount = 0;
  #endedBytes = 0;

  constructor(options: RecentCallsOptions) {
    this.#options = options;
  }

  decide(key: string, body: Buffer, isMarkedRetry: boolean): RetryDecision<C> {
    if (!isMarkedRetry) return { kind: "new" };
    const calls = this.#byKey.get(key)?.map((entry) => entry.call) ?? [];
    const { nowMs, windowMs } = this.#options;
    return decideRetry(calls, { body, isMarkedRetry, nowMs: nowMs(), windowMs });
  }

  /** Gives what must be called when the call has ended; `keptBytes` is the size of its answer. */
  add(key: string, call: C): (keptBytes: number) => void {
    const entry: Entry<C> = {
      key,
      call,
      bytes: call.body.length,
      isEnded: false,
      endedAtMs: 0,
      before: undefined,
      after: undefined,
    };
    const entries = this.#byKey.get(key);
    if (entries === undefined) this.#byKey.set(key, [entry]);
    else entries.push(entry);
    return (keptBytes) => this.#noteEnd(entry, keptBytes);
  }

  /** A replayed answer is not replayed a third time, and a forgotten one not again. */
  forget(key: string, call: C): void {
    const entry = this.#byKey.get(key)?.find((candidate) => candidate.call === call);
    if (entry !== undefined) this.#drop(entry);
  }

  get size(): number {
    return this.#endedCount;
  }

  #noteEnd(entry: Entry<C>, keptBytes: number): void {
    entry.bytes += keptBytes;
    this.#append(entry);
    this.#dropOldest(this.#byKey.get(entry.key) ?? []);
    this.#expire();
  }

  /** Of one key, when too many have ended. */
  #dropOldest(siblings: readonly Entry<C>[]): void {
    if (siblings.length <= maxEndedPerKey) return;
    let count = 0;
    let oldest: Entry<C> | undefined;
    for (const sibling of siblings) {
      if (!sibling.isEnded) continue;
      oldest ??= sibling;
      count += 1;
    }
    if (count > maxEndedPerKey && oldest !== undefined) this.#drop(oldest);
  }

  #expire(): void {
    const deadline = this.#options.nowMs() - this.#options.windowMs;
    while (this.#oldest !== undefined) {
      const isOld = this.#oldest.endedAtMs < deadline;
      const isOver = this.#endedBytes > this.#options.maxBytes || this.#endedCount > maxEnded;
      if (!isOld && !isOver) return;
      this.#drop(this.#oldest);
    }
  }

  #drop(entry: Entry<C>): void {
    if (entry.isEnded) this.#unlink(entry);
    const entries = this.#byKey.get(entry.key);
    if (entries === undefined) return;
    const index = entries.indexOf(entry);
    if (index !== -1) entries.splice(index, 1);
    if (entries.length === 0) this.#byKey.delete(entry.key);
  }

  #append(entry: Entry<C>): void {
    entry.isEnded = true;
    entry.endedAtMs = this.#options.nowMs();
    entry.before = this.#latest;
    if (this.#latest === undefined) this.#oldest = entry;
    else this.#latest.after = entry;
    this.#latest = entry;
    this.#endedCount += 1;
    this.#endedBytes += entry.bytes;
  }

  /** Leaves no reference behind: a dropped entry must not keep later ones from being collected. */
  #unlink(entry: Entry<C>): void {
    const { before, after } = entry;
    if (before === undefined) this.#oldest = after;
    else before.after = after;
    if (after === undefined) this.#latest = before;
    else after.before = before;
    entry.isEnded = false;
    entry.before = undefined;
    entry.after = undefined;
    this.#endedCount -= 1;
    this.#endedBytes -= entry.bytes;
  }
}
