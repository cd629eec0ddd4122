import { expect, it } from "vitest";
import { statusProblem } from "./status-problem.ts";

const template = { error: { message: "the chat template cannot render:\n no system role" } };

it.each([
  [400, JSON.stringify(template), "status-400: the chat template cannot render: no system role"],
  [500, "", "status-500: the engine gave no reason"],
  [401, '{"error": {"message": "bad key sk-1"}}', "status-401"],
  [502, "x".repeat(900), `status-502: ${"x".repeat(300)}…`],
])("says what an engine refuses the canary with: %i", (status, body, expected) => {
  expect(statusProblem(status, Buffer.from(body))).toBe(expected);
});
