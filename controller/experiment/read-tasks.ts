import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { OutriggerError } from "../../core/outrigger-error.ts";

/** One problem: what the experiment's JSON line said, and an id that is unique in its file. */
export interface Task {
  readonly taskId: string;
  readonly fields: Readonly<Record<string, unknown>>;
  /** Where it was read, from 1; absent for one that came another way. */
  readonly line?: number;
}

export type TaskSource =
  | { readonly file: string }
  | { readonly command: readonly string[]; readonly timeoutMs: number };

const maxTaskBytes = 1024 * 1024 * 1024;

/**
 * Reads JSON lines, one object a task; blank lines are skipped.
 *
 * @param name what the tasks are called in errors, such as `tasks.train`
 * @throws OutriggerError `tasks-unreadable` or `tasks-invalid` (origin user), naming the line
 */
export async function readTasks(
  name: string,
  source: TaskSource,
  idField: string,
): Promise<readonly Task[]> {
  const where = "file" in source ? source.file : `the output of ${source.command.join(" ")}`;
  let text: string;
  try {
    text = "file" in source ? await readFile(source.file, "utf8") : await outputOf(source);
  } catch (cause) {
    throw new OutriggerError(
      "tasks-unreadable",
      `${name}: cannot read ${where}: ${(cause as Error).message}`,
      { origin: "user", hint: "Check the path or the command in the experiment file.", cause },
    );
  }
  return parseTasks(name, where, text, idField);
}

export function parseTasks(
  name: string,
  where: string,
  text: string,
  idField: string,
): readonly Task[] {
  const fail = (line: number, problem: string): OutriggerError =>
    new OutriggerError("tasks-invalid", `${name}: ${where}, line ${line}: ${problem}`, {
      origin: "user",
      hint: "Each line must be one JSON object, each with its own id.",
    });
  const tasks: Task[] = [];
  const lineOfId = new Map<string, number>();
  // Editors may put a byte order mark in front.
  for (const [index, raw] of text
    .replace(/^\uFEFF/, "")
    .split("\n")
    .entries()) {
    if (raw.trim() === "") continue;
    let fields: unknown;
    try {
      fields = JSON.parse(raw);
    } catch (error) {
      throw fail(index + 1, (error as Error).message);
    }
    if (typeof fields !== "object" || fields === null || Array.isArray(fields)) {
      throw fail(index + 1, "not a JSON object");
    }
    const id = (fields as Record<string, unknown>)[idField];
    if (id !== undefined && typeof id !== "string" && typeof id !== "number") {
      throw fail(index + 1, `${idField} is neither text nor a number`);
    }
    const taskId = id === undefined ? `line-${index + 1}` : String(id);
    const earlier = lineOfId.get(taskId);
    if (earlier !== undefined) throw fail(index + 1, `id ${taskId} is already on line ${earlier}`);
    lineOfId.set(taskId, index + 1);
    tasks.push({ taskId, fields: fields as Record<string, unknown>, line: index + 1 });
  }
  if (tasks.length === 0) throw fail(1, "no task at all");
  return tasks;
}

async function outputOf(source: {
  readonly command: readonly string[];
  readonly timeoutMs: number;
}): Promise<string> {
  const [program, ...args] = source.command;
  const { stdout } = await promisify(execFile)(program as string, args, {
    timeout: source.timeoutMs,
    maxBuffer: maxTaskBytes,
  });
  return stdout;
}
