/**
 * Wakes one loop when something has changed. `next()` is taken before the state is read, so that a
 * change in between is not missed; the function it gives resolves at the change after that.
 */
export interface ChangeSignal {
  notify(): void;
  next(): (signal: AbortSignal) => Promise<void>;
}

export function createChangeSignal(): ChangeSignal {
  let revision = 0;
  let waiting = new Set<() => void>();
  return {
    notify: () => {
      revision += 1;
      const woken = waiting;
      waiting = new Set();
      for (const wake of woken) wake();
    },
    next: () => {
      const seen = revision;
      return (signal) => {
        if (revision !== seen) return Promise.resolve();
        if (signal.aborted) return Promise.reject(signal.reason as Error);
        return new Promise((resolve, reject) => {
          const onAbort = (): void => {
            waiting.delete(wake);
            reject(signal.reason as Error);
          };
          const wake = (): void => {
            signal.removeEventListener("abort", onAbort);
            resolve();
          };
          waiting.add(wake);
          signal.addEventListener("abort", onAbort, { once: true });
        });
      };
    },
  };
}
