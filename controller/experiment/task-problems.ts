import { taskText } from "../runners/harness-environment.ts";
import type { Experiment } from "./load-experiment.ts";
import type { Task } from "./read-tasks.ts";

const shownProblems = 5;

/** One string of an environment on Linux, name, `=` and the ending NUL included. */
const maxVariableBytes = 128 * 1024;

/** Tasks that the experiment's `fromTask` cannot be filled from; the first few, then a count. */
export function taskProblems(
  name: string,
  tasks: readonly Task[],
  { harness, tasks: settings }: Pick<Experiment, "harness" | "tasks">,
): readonly string[] {
  const problems: string[] = [];
  for (const [variable, path] of Object.entries(harness.fromTask)) {
    const field = path.split(".")[0] as string;
    if (settings.verifierOnly.includes(field)) {
      problems.push(`harness.fromTask.${variable}: ${path} is for the verifier only`);
      continue;
    }
    const found = tasks.flatMap((task) => {
      const problem = valueProblem(task, variable, path);
      return problem === undefined ? [] : [`${name}: ${where(task)}: ${problem}`];
    });
    problems.push(...found.slice(0, shownProblems));
    if (found.length > shownProblems) {
      problems.push(`${name}: … and ${found.length - shownProblems} more with such a ${path}`);
    }
  }
  return problems;
}

function where({ taskId, line }: Task): string {
  return line === undefined ? `task ${taskId}` : `line ${line}, task ${taskId}`;
}

function valueProblem(task: Task, variable: string, path: string): string | undefined {
  const text = taskText(task, path);
  const named = `(harness.fromTask.${variable})`;
  if (text === undefined) return `no field ${path} ${named}`;
  if (text.includes("\0")) {
    return `${path} has a NUL character, which no environment variable can hold ${named}`;
  }
  const bytes = Buffer.byteLength(text);
  if (bytes + variable.length + 2 <= maxVariableBytes) return undefined;
  return `${path} has ${bytes} bytes, more than an environment variable can hold; let the harness read harness.taskFile ${named}`;
}
