// Grades attempts after the harness has exited: one JSON line in, one JSON line out. The answer
// file must hold the number and nothing else.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";

function readAnswer(workspace) {
  try {
    return readFileSync(join(workspace, "answer.txt"), "utf8").trim();
  } catch (error) {
    if (error.code === "ENOENT") return undefined;
    throw error;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, task, workspace } = JSON.parse(line);
  const answer = readAnswer(workspace);
  const reward = answer === task.answer ? 1 : 0;
  process.stdout.write(`${JSON.stringify({ id, reward, info: { answer } })}\n`);
}
