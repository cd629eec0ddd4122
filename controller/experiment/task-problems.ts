import type { Experiment } from "./load-experiment.ts";
import type { Task } from "./read-tasks.ts";

const shownProblems = 5;

/** Tasks that the experiment's `fromTask` cannot be filled from; the first few, then a count. */
export function taskProblems(
  name: string,
  tasks: readonly Task[],
  { harness, tasks: settings }: Experiment,
): readonly string[] {
  const problems: string[] = [];
  for (const [variable, path] of Object.entries(harness.fromTask)) {
    const field = path.split(".")[0] as string;
    if (settings.verifierOnly.includes(field)) {
      problems.push(`harness.fromTask.${variable}: ${path} is for the verifier only`);
      continue;
    }
    const missing = tasks.filter((task) => !hasPath(task.fields, path.split(".")));
    for (const task of missing.slice(0, shownProblems)) {
      problems.push(
        `${name}: task ${task.taskId} has no field ${path} (harness.fromTask.${variable})`,
      );
    }
    if (missing.length > shownProblems) {
      problems.push(`${name}: … and ${missing.length - shownProblems} more without ${path}`);
    }
  }
  return problems;
}

function hasPath(value: unknown, [part, ...rest]: readonly string[]): boolean {
  if (part === undefined) return value !== undefined;
  if (typeof value !== "object" || value === null || !Object.hasOwn(value, part)) return false;
  return hasPath((value as Record<string, unknown>)[part], rest);
}
