/** Records that could not be kept, by attempt, to be reported once there is room again. */
export interface LostRecords {
  readonly total: number;
  /** Nothing is left to report. */
  readonly isEmpty: boolean;
  add(loss: {
    readonly rolloutId: string;
    readonly attemptId: string;
    readonly reason: string;
  }): void;
  /** Takes the losses that were not reported yet. */
  take(): readonly LostOfAttempt[];
  /** Puts back what could not be reported after all. */
  putBack(losses: readonly LostOfAttempt[]): void;
}

export interface LostOfAttempt {
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly reason: string;
  readonly count: number;
}

/** Beyond so many attempts only the total is known. */
const maxAttempts = 1000;

export function createLostRecords(): LostRecords {
  const byAttempt = new Map<string, LostOfAttempt>();
  let total = 0;
  const merge = (loss: LostOfAttempt): void => {
    const key = JSON.stringify([loss.rolloutId, loss.attemptId, loss.reason]);
    const known = byAttempt.get(key);
    if (known === undefined && byAttempt.size >= maxAttempts) return;
    byAttempt.set(key, { ...loss, count: loss.count + (known?.count ?? 0) });
  };
  return {
    get total() {
      return total;
    },
    get isEmpty() {
      return byAttempt.size === 0;
    },
    add: (loss) => {
      total += 1;
      merge({ ...loss, count: 1 });
    },
    take: () => {
      const losses = [...byAttempt.values()];
      byAttempt.clear();
      return losses;
    },
    putBack: (losses) => losses.forEach(merge),
  };
}
