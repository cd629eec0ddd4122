// Writes tasks/train.jsonl and tasks/held-out.jsonl: arithmetic questions in words, seeded, no
// question in both files.
//
//   npx tsx examples/calculator/make-tasks.ts
import { mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** mulberry32: a small seeded generator, uniform in [0, 1). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Each phrasing with the expression that it means; `%a`, `%b` are the numbers in order. */
export const phrasings = [
  { text: "What is %a plus %b?", expression: "%a+%b" },
  { text: "Add %a and %b.", expression: "%a+%b" },
  { text: "What is %a minus %b?", expression: "%a-%b" },
  { text: "Take %b away from %a.", expression: "%a-%b" },
  { text: "What is %a times %b?", expression: "%a*%b" },
  { text: "Multiply %a by %b.", expression: "%a*%b" },
];

const evaluate: Record<string, (a: number, b: number) => number> = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
};

export interface ArithmeticTask {
  readonly question: string;
  readonly expression: string;
  readonly answer: string;
}

export function makeTask(random: () => number): ArithmeticTask {
  const phrasing = phrasings[Math.floor(random() * phrasings.length)] as (typeof phrasings)[number];
  const number = (): number => 10 + Math.floor(random() * 90);
  const [x, y] = [number(), number()];
  const [a, b] = phrasing.expression.includes("-") && y > x ? [y, x] : [x, y];
  const fill = (pattern: string): string =>
    pattern.replaceAll("%a", String(a)).replaceAll("%b", String(b));
  const operator = phrasing.expression[2] as string;
  return {
    question: fill(phrasing.text),
    expression: fill(phrasing.expression),
    answer: String((evaluate[operator] as (a: number, b: number) => number)(a, b)),
  };
}

/** `count` different tasks; those in `seen` are left out and the new ones are added to it. */
export function makeTasks(
  seed: number,
  count: number,
  prefix: string,
  seen: Set<string>,
): { id: string; question: string; answer: string }[] {
  const random = seededRandom(seed);
  const tasks: { id: string; question: string; answer: string }[] = [];
  while (tasks.length < count) {
    const task = makeTask(random);
    if (seen.has(task.expression)) continue;
    seen.add(task.expression);
    tasks.push({ id: `${prefix}-${tasks.length}`, question: task.question, answer: task.answer });
  }
  return tasks;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const folder = new URL("./tasks/", import.meta.url);
  mkdirSync(folder, { recursive: true });
  const seen = new Set<string>();
  const lines = (tasks: readonly object[]): string =>
    tasks.map((task) => `${JSON.stringify(task)}\n`).join("");
  writeFileSync(new URL("held-out.jsonl", folder), lines(makeTasks(1, 200, "held-out", seen)));
  writeFileSync(new URL("train.jsonl", folder), lines(makeTasks(2, 2000, "train", seen)));
}
