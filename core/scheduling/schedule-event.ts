import { z } from "zod";
import { OutriggerError } from "../outrigger-error.ts";

const t = z.number().nonnegative();
const id = z.string().min(1);
const version = z.int().nonnegative();
const turn = z.int().nonnegative();

const scheduleEventSchema = z.discriminatedUnion("type", [
  z.object({ t, type: z.literal("admit"), groupId: id }),
  z.object({ t, type: z.literal("call-start"), rolloutId: id, turn, version }),
  z.object({ t, type: z.literal("call-end"), rolloutId: id, turn }),
  z.object({ t, type: z.literal("call-abort"), rolloutId: id, turn }),
  z.object({ t, type: z.literal("rollout-end"), rolloutId: id }),
  z.object({ t, type: z.literal("pause") }),
  z.object({ t, type: z.literal("drained") }),
  z.object({ t, type: z.literal("resume") }),
  z.object({ t, type: z.literal("train-start"), version, groups: z.array(id) }),
  z.object({ t, type: z.literal("train-end") }),
  z.object({ t, type: z.literal("publish"), version }),
  z.object({ t, type: z.literal("drop"), groupId: id }),
]);

/**
 * One line of a schedule's log, simulated or real; `t` in milliseconds from its start.
 *
 * Example: `{ t: 1200, type: "call-start", rolloutId: "g3-r1", turn: 0, version: 2 }`.
 * `train-start` names the version that the update starts from, `publish` the new one (+1).
 * The odd case: a rollout that the tail policy cuts has a `rollout-end` before its last turn.
 */
export type ScheduleEvent = z.infer<typeof scheduleEventSchema>;

/** One JSON line without its newline. */
export function encodeScheduleEvent(event: ScheduleEvent): string {
  return JSON.stringify(event);
}

/**
 * Reads a whole log. Unknown extra fields are dropped, so that a recorder may add some.
 * @throws OutriggerError `bad-schedule-log` (user) with the line number
 */
export function parseScheduleLog(text: string): ScheduleEvent[] {
  const events: ScheduleEvent[] = [];
  let lastT = 0;
  for (const [index, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const event = parseLine(line, index + 1);
    if (event.t < lastT) throw badLog(index + 1, `t goes back from ${lastT} to ${event.t}`);
    lastT = event.t;
    events.push(event);
  }
  return events;
}

function parseLine(line: string, lineNumber: number): ScheduleEvent {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw badLog(lineNumber, "is not JSON");
  }
  const parsed = scheduleEventSchema.safeParse(value);
  if (!parsed.success) throw badLog(lineNumber, z.prettifyError(parsed.error));
  return parsed.data;
}

function badLog(lineNumber: number, what: string): OutriggerError {
  return new OutriggerError("bad-schedule-log", `schedule log, line ${lineNumber}: ${what}`, {
    origin: "user",
    hint: "Each line is one JSON object with t and type, in order of t; see docs/scheduling.md.",
  });
}
