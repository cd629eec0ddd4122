// An ordinary tool-calling agent written against the official `openai` package. It knows nothing
// of who serves its model: base URL and key come from OPENAI_BASE_URL and OPENAI_API_KEY.
//
//   QUESTION="What is 12 times 7?" node harness.mjs
//
// Prints the answer and writes it to answer.txt in the working directory.
import { writeFileSync } from "node:fs";
import OpenAI from "openai";

const maxTurns = 4;

const tools = [
  {
    type: "function",
    function: {
      name: "calculator",
      description: "Evaluates an arithmetic expression.",
      parameters: {
        type: "object",
        properties: { expression: { type: "string" } },
        required: ["expression"],
      },
    },
  },
];

/** Integers with + - * and the usual precedence; anything else is an error the model reads. */
function calculate(expression) {
  if (!/^\d+(?:\s*[-+*]\s*\d+)*$/.test(expression)) return "error: not an expression";
  const terms = expression.replace(/\s+/g, "").match(/[-+]?[^-+]+/g);
  let sum = 0;
  for (const term of terms) {
    const sign = term.startsWith("-") ? -1 : 1;
    const factors = term.replace(/^[-+]/, "").split("*").map(Number);
    sum += sign * factors.reduce((product, factor) => product * factor, 1);
  }
  return String(sum);
}

function runTool(call) {
  if (call.function.name !== "calculator") return `error: no tool named ${call.function.name}`;
  try {
    const { expression } = JSON.parse(call.function.arguments);
    return calculate(String(expression));
  } catch {
    return "error: arguments are not JSON";
  }
}

/** One streamed model turn, put together from its deltas. */
async function ask(client, messages) {
  const stream = await client.chat.completions.create({
    model: process.env.OPENAI_MODEL ?? "policy",
    messages,
    tools,
    stream: true,
  });
  let content = "";
  const calls = [];
  for await (const chunk of stream) {
    const delta = chunk.choices[0]?.delta;
    content += delta?.content ?? "";
    for (const part of delta?.tool_calls ?? []) {
      const call = (calls[part.index] ??= {
        id: "",
        type: "function",
        function: { name: "", arguments: "" },
      });
      call.id ||= part.id ?? "";
      call.function.name += part.function?.name ?? "";
      call.function.arguments += part.function?.arguments ?? "";
    }
  }
  return { role: "assistant", content, ...(calls.length > 0 && { tool_calls: calls }) };
}

async function main() {
  const question = process.env.QUESTION;
  if (!question) throw new Error("QUESTION is not set");
  const client = new OpenAI();
  const messages = [
    { role: "system", content: "Answer with a number. Use the calculator." },
    { role: "user", content: question },
  ];
  for (let turn = 0; turn < maxTurns; turn += 1) {
    const message = await ask(client, messages);
    messages.push(message);
    if (!message.tool_calls) {
      writeFileSync("answer.txt", message.content);
      process.stdout.write(`${message.content}\n`);
      return;
    }
    for (const call of message.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: runTool(call) });
    }
  }
  process.stdout.write("no answer within the turn limit\n");
}

await main();
