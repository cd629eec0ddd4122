import { makeTask } from "../make-tasks.ts";

export interface Message {
  readonly role: "system" | "user" | "assistant" | "tool";
  readonly content: string;
  readonly tool_calls?: readonly {
    readonly type: "function";
    readonly function: {
      readonly name: string;
      readonly arguments: { readonly expression: string };
    };
  }[];
}

/** How often each way of working is shown. Only `good` solves the task: RL has to find that out. */
export const shares = { good: 0.38, guess: 0.34, wordy: 0.23, "wrong-operator": 0.05 } as const;

const operators = ["+", "-", "*"] as const;
const evaluate: Record<string, (a: number, b: number) => number> = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
};

/** One conversation as a demonstrator of mixed quality would have had it through the harness. */
export function demonstrate(random: () => number): Message[] {
  const task = makeTask(random) as { question: string; expression: string; answer: string };
  const opening: Message[] = [
    { role: "system", content: "Answer with a number. Use the calculator." },
    { role: "user", content: task.question },
  ];
  const kind = pickKind(random());
  if (kind === "guess") {
    return [...opening, { role: "assistant", content: guess(task.answer, random) }];
  }
  const expression =
    kind === "wrong-operator" ? otherOperator(task.expression, random) : task.expression;
  const [, a, operator, b] = /^(\d+)(.)(\d+)$/.exec(expression) as unknown as [
    string,
    string,
    string,
    string,
  ];
  const result = String(
    (evaluate[operator] as (a: number, b: number) => number)(Number(a), Number(b)),
  );
  return [
    ...opening,
    {
      role: "assistant",
      content: "",
      tool_calls: [
        { type: "function", function: { name: "calculator", arguments: { expression } } },
      ],
    },
    { role: "tool", content: result },
    { role: "assistant", content: kind === "wordy" ? `The answer is ${result}.` : result },
  ];
}

function pickKind(at: number): keyof typeof shares {
  let rest = at;
  for (const [kind, share] of Object.entries(shares)) {
    rest -= share;
    if (rest < 0) return kind as keyof typeof shares;
  }
  return "good";
}

/** A number with as many digits as the answer: what one says without calculating. */
function guess(answer: string, random: () => number): string {
  return Array.from(answer)
    .map((digit, i) =>
      /\d/.test(digit)
        ? String(Math.floor(random() * (i === 0 ? 9 : 10)) + (i === 0 ? 1 : 0))
        : digit,
    )
    .join("");
}

function otherOperator(expression: string, random: () => number): string {
  const operator = expression.replace(/\d/g, "");
  const others = operators.filter((candidate) => candidate !== operator);
  return expression.replace(operator, others[Math.floor(random() * others.length)] as string);
}
