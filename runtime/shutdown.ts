import process from "node:process";

export interface Shutdown {
  /** Aborted by the first SIGTERM or SIGINT: drain. */
  readonly signal: AbortSignal;
  release(): void;
}

/** First SIGTERM or SIGINT drains, a second one exits at once with 130 or 143. */
export function listenForShutdown(onFirst?: (signal: NodeJS.Signals) => void): Shutdown {
  const controller = new AbortController();
  const listener = (name: NodeJS.Signals): void => {
    if (controller.signal.aborted) process.exit(name === "SIGINT" ? 130 : 143);
    onFirst?.(name);
    controller.abort(new Error(`received ${name}`));
  };
  process.on("SIGTERM", listener);
  process.on("SIGINT", listener);
  return {
    signal: controller.signal,
    release: () => {
      process.off("SIGTERM", listener);
      process.off("SIGINT", listener);
    },
  };
}
