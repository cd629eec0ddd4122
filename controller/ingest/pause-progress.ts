/** What is known of one sidecar's gate. */
export interface GateView {
  readonly sidecarId: string;
  readonly connected: boolean;
  /** When it was last connected, ms since the epoch. */
  readonly lastSeenAtMs: number;
  /** The command that its latest report answers; undefined before one. */
  readonly reportedCommandId: string | undefined;
  readonly drained: boolean;
}

export interface PauseProgress {
  /** Nothing more is to be waited for. */
  readonly isSettled: boolean;
  /** The next moment at which that may change by itself, ms since the epoch. */
  readonly recheckAtMs: number | undefined;
  readonly sidecars: readonly {
    readonly sidecarId: string;
    readonly state: "drained" | "draining" | "away";
  }[];
}

/**
 * How far a pause has come. A sidecar that is not connected is waited for until it has been away
 * for `absenceLimitMs` (a restart, a short break of the network); after that it is `away`.
 */
export function pauseProgress(
  views: readonly GateView[],
  commandId: string,
  nowMs: number,
  absenceLimitMs: number,
): PauseProgress {
  const sidecars = views.map((view) => {
    const isDrained = view.connected && view.reportedCommandId === commandId && view.drained;
    const isAway = !view.connected && nowMs - view.lastSeenAtMs >= absenceLimitMs;
    return {
      sidecarId: view.sidecarId,
      state: isDrained ? ("drained" as const) : isAway ? ("away" as const) : ("draining" as const),
    };
  });
  const rechecks = views
    .filter((view, i) => !view.connected && sidecars[i]?.state === "draining")
    .map((view) => view.lastSeenAtMs + absenceLimitMs);
  return {
    isSettled: sidecars.every(({ state }) => state !== "draining"),
    recheckAtMs: rechecks.length === 0 ? undefined : Math.min(...rechecks),
    sidecars,
  };
}
