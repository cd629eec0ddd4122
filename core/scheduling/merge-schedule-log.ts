import type { ScheduleEvent } from "./schedule-event.ts";

/** One request that an engine was sent, as its record says. Times in ms since the run began. */
export interface RecordedCall {
  readonly rolloutId: string;
  readonly attemptId: string;
  /** When the engine was sent it, after any hold. */
  readonly startedAt: number;
  readonly endedAt: number;
  /** Policy version of its first token. */
  readonly version: number;
  /** Its answer did not reach the harness whole. */
  readonly isAborted: boolean;
}

/** What is durable of a run. Times in ms since the run began. */
export interface DurableSchedule {
  readonly admitted: readonly { readonly groupId: string; readonly at: number }[];
  readonly droppedGroupIds: readonly string[];
  readonly ended: readonly { readonly rolloutId: string; readonly at: number }[];
  /** In order. */
  readonly steps: readonly {
    readonly fromVersion: number;
    readonly groupIds: readonly string[];
    readonly startedAt: number;
    readonly published?: { readonly version: number; readonly at: number };
  }[];
  readonly calls: readonly RecordedCall[];
}

/**
 * The whole log of a run: the lines that its sessions wrote as they decided, the calls, and what
 * was made durable just before a kill and is not among the lines. Idempotent: calls that are among
 * the lines already are taken from `durable` again.
 */
export function mergeScheduleLog(
  logged: readonly ScheduleEvent[],
  durable: DurableSchedule,
): ScheduleEvent[] {
  const decisions = logged.filter((event) => !event.type.startsWith("call-"));
  const placed: Placed[] = [
    ...[
      ...missingArrivals(decisions, durable),
      ...decisions,
      ...missingConsequences(decisions, durable),
    ].map((event): Placed => ({ event: whole(event), rank: 1 })),
    ...callEvents(durable.calls),
  ];
  return placed
    .map((one, index) => ({ ...one, index }))
    .sort((a, b) => a.event.t - b.event.t || a.rank - b.rank || a.index - b.index)
    .map(({ event }) => event);
}

/**
 * Within one millisecond: what ends, then what was decided, then what starts. A call that ends in
 * the millisecond of its start ends after it.
 */
interface Placed {
  readonly event: ScheduleEvent;
  readonly rank: 0 | 1 | 2 | 3;
}

function whole(event: ScheduleEvent): ScheduleEvent {
  return { ...event, t: Math.max(0, Math.floor(event.t)) };
}

/** What decisions of the same millisecond may rest on. */
function missingArrivals(
  decisions: readonly ScheduleEvent[],
  { admitted, ended }: DurableSchedule,
): ScheduleEvent[] {
  const admissions = new Set(decisions.flatMap((e) => (e.type === "admit" ? [e.groupId] : [])));
  const ends = new Set(decisions.flatMap((e) => (e.type === "rollout-end" ? [e.rolloutId] : [])));
  return [
    ...admitted
      .filter(({ groupId }) => !admissions.has(groupId))
      .map(({ groupId, at }): ScheduleEvent => ({ t: at, type: "admit", groupId })),
    ...ended
      .filter(({ rolloutId }) => !ends.has(rolloutId))
      .map(({ rolloutId, at }): ScheduleEvent => ({ t: at, type: "rollout-end", rolloutId })),
  ];
}

/** What a session did last. */
function missingConsequences(
  decisions: readonly ScheduleEvent[],
  { droppedGroupIds, steps }: DurableSchedule,
): ScheduleEvent[] {
  const drops = new Set(decisions.flatMap((e) => (e.type === "drop" ? [e.groupId] : [])));
  const starts = new Set(
    decisions.flatMap((e) => (e.type === "train-start" ? [startKey(e.version, e.groups)] : [])),
  );
  // Of the same version more than once: updates that had nothing to learn.
  const logged = new Map<number, number>();
  for (const event of decisions) {
    if (event.type === "publish") logged.set(event.version, (logged.get(event.version) ?? 0) + 1);
  }
  const published = steps.flatMap((step) => step.published ?? []);
  const unlogged = published.filter(({ version }) => {
    const count = logged.get(version) ?? 0;
    logged.set(version, count - 1);
    return count <= 0;
  });
  const lastT = decisions.at(-1)?.t ?? 0;
  return [
    ...droppedGroupIds
      .filter((groupId) => !drops.has(groupId))
      .map((groupId): ScheduleEvent => ({ t: lastT, type: "drop", groupId })),
    ...steps
      .filter((step) => !starts.has(startKey(step.fromVersion, step.groupIds)))
      .map(
        (step): ScheduleEvent => ({
          t: step.startedAt,
          type: "train-start",
          version: step.fromVersion,
          groups: [...step.groupIds],
        }),
      ),
    ...unlogged.map(({ version, at }): ScheduleEvent => ({ t: at, type: "publish", version })),
  ];
}

function startKey(version: number, groupIds: readonly string[]): string {
  return `${version} ${groupIds.join(" ")}`;
}

function callEvents(calls: readonly RecordedCall[]): Placed[] {
  const turns = new Map<string, number>();
  return calls
    .toSorted((a, b) => a.startedAt - b.startedAt)
    .flatMap(({ rolloutId, attemptId, startedAt, endedAt, version, isAborted }): Placed[] => {
      // A call that was aborted is made again as the same turn.
      const turn = turns.get(attemptId) ?? 0;
      if (!isAborted) turns.set(attemptId, turn + 1);
      const from = Math.max(0, Math.floor(startedAt));
      const to = Math.max(from, Math.floor(endedAt));
      const type = isAborted ? "call-abort" : "call-end";
      return [
        { event: { t: from, type: "call-start", rolloutId, turn, version }, rank: 2 },
        { event: { t: to, type, rolloutId, turn }, rank: to > from ? 0 : 3 },
      ];
    });
}
