import { appendFileSync, existsSync, readFileSync } from "node:fs";
import {
  type DurableSchedule,
  mergeScheduleLog,
} from "../../core/scheduling/merge-schedule-log.ts";
import {
  encodeScheduleEvent,
  parseScheduleLog,
  type ScheduleEvent,
} from "../../core/scheduling/schedule-event.ts";
import type { Logger } from "../../runtime/log.ts";
import { writeAtomically } from "../run-directory.ts";
import type { CallStore } from "../store/call-store.ts";
import type { RolloutStore } from "../store/rollout-store.ts";
import type { StepStore } from "../store/step-store.ts";
import type { StepMetrics } from "./step-metrics.ts";

type DistributedOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

/** Notes a line; the time is now. */
export type EmitScheduleEvent = (event: DistributedOmit<ScheduleEvent, "t">) => void;

/**
 * `schedule.jsonl`: a run's schedule in the simulator's format. A line is appended as it is
 * decided; the calls, of which the controller learns when they are over, are put in between at the
 * start of a resumed session and at a session's end.
 */
export interface ScheduleLog {
  append(event: ScheduleEvent): void;
  /** Makes the file whole. */
  complete(): Promise<void>;
}

export interface ScheduleLogOptions {
  readonly file: string;
  /** When the run began, ms since the epoch: `t` counts from here. */
  readonly runStartedAtMs: number;
  readonly stores: {
    readonly rollouts: RolloutStore;
    readonly steps: StepStore;
    readonly calls: CallStore;
  };
  readonly log: Logger;
}

export async function openScheduleLog(options: ScheduleLogOptions): Promise<ScheduleLog> {
  const { file, log } = options;
  const complete = async (): Promise<void> => {
    const lines = readLines(file, log);
    if (lines === undefined) return;
    const events = mergeScheduleLog(lines, await durableSchedule(options));
    writeAtomically(file, events.map((event) => `${encodeScheduleEvent(event)}\n`).join(""));
  };
  if (existsSync(file)) await complete();
  return {
    append: (event) => appendFileSync(file, `${encodeScheduleEvent(event)}\n`),
    complete,
  };
}

/** A last line that a crash of the machine cut off is left out; what is no log is left alone. */
function readLines(file: string, log: Logger): readonly ScheduleEvent[] | undefined {
  if (!existsSync(file)) return [];
  const text = readFileSync(file, "utf8");
  try {
    return parseScheduleLog(text.slice(0, text.lastIndexOf("\n") + 1));
  } catch (error) {
    log.warn({ err: error, file }, "the schedule's log cannot be read; it stays as it is");
    return undefined;
  }
}

async function durableSchedule({
  stores,
  runStartedAtMs,
}: ScheduleLogOptions): Promise<DurableSchedule> {
  const since = (ms: number): number => ms - runStartedAtMs;
  const groups = await stores.steps.allGroups();
  const rollouts = await stores.rollouts.list({ purpose: "train" });
  const steps = await stores.steps.steps<StepMetrics>();
  const calls = await stores.calls.sentRequests();
  const trained = new Set(rollouts.map(({ rolloutId }) => rolloutId));
  return {
    admitted: groups.map(({ groupId, admittedAtMs }) => ({ groupId, at: since(admittedAtMs) })),
    droppedGroupIds: groups.flatMap((one) => (one.state === "dropped" ? [one.groupId] : [])),
    ended: rollouts.flatMap(({ rolloutId, terminalSeq, updatedAtMs }) =>
      terminalSeq === undefined ? [] : [{ rolloutId, at: since(updatedAtMs) }],
    ),
    steps: steps.map(({ fromVersion, groupIds, startedAtMs, endedAtMs, metrics }) => ({
      fromVersion,
      groupIds,
      startedAt: since(startedAtMs),
      ...(endedAtMs !== undefined &&
        metrics !== undefined && { published: { version: metrics.version, at: since(endedAtMs) } }),
    })),
    calls: calls
      .filter(({ rolloutId }) => trained.has(rolloutId))
      .map(({ sentAtMs, finishedAtMs, isDelivered, ...call }) => ({
        ...call,
        startedAt: since(sentAtMs),
        endedAt: since(finishedAtMs),
        isAborted: !isDelivered,
      })),
  };
}
