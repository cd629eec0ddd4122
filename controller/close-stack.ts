/** What has been opened, closed in reverse: after a failure half way as at the end. */
export interface CloseStack {
  add(close: () => Promise<void>): void;
  /** All of them, also when one fails; rejects with the first failure. Twice is once. */
  close(): Promise<void>;
}

export function createCloseStack(): CloseStack {
  const closers: (() => Promise<void>)[] = [];
  return {
    add: (close) => {
      closers.push(close);
    },
    close: async () => {
      const failures: unknown[] = [];
      for (let close = closers.pop(); close !== undefined; close = closers.pop()) {
        await close().catch((error: unknown) => failures.push(error));
      }
      if (failures.length > 0) throw failures[0] as Error;
    },
  };
}
