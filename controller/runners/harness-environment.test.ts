import { describe, expect, it } from "vitest";
import type { Experiment } from "../experiment/load-experiment.ts";
import { buildHarnessEnvironment, visibleTask } from "./harness-environment.ts";

const harness = {
  environment: { MODE: "fast", OPENAI_API_KEY: "sk-own" },
  fromTask: { QUESTION: "question", FIRST: "parts.0.text", PARTS: "parts" },
  passEnvironment: ["PROXY"],
  variables: {
    openaiBaseUrl: ["OPENAI_BASE_URL", "API_BASE"],
    openaiApiKey: ["OPENAI_API_KEY"],
    anthropicBaseUrl: ["ANTHROPIC_BASE_URL"],
    anthropicApiKey: ["ANTHROPIC_API_KEY"],
    model: ["OPENAI_MODEL"],
  },
} as unknown as Experiment["harness"];
const task = { taskId: "t", fields: { question: "2 + 2", answer: "4", parts: [{ text: "a" }] } };
const identity = { runId: "run", rolloutId: "r", attemptId: "r.1" };
const endpoints = { sidecarUrl: "http://127.0.0.1:9", token: "secret", model: "policy" };

describe("buildHarnessEnvironment", () => {
  it("gives what the experiment says, and the sidecar always wins", () => {
    const inherited = { PATH: "/bin", PROXY: "p", AWS_SECRET_ACCESS_KEY: "no" };
    expect(buildHarnessEnvironment(harness, task, identity, endpoints, inherited)).toEqual({
      PATH: "/bin",
      PROXY: "p",
      MODE: "fast",
      QUESTION: "2 + 2",
      FIRST: "a",
      PARTS: '[{"text":"a"}]',
      OPENAI_BASE_URL: "http://127.0.0.1:9/v1",
      API_BASE: "http://127.0.0.1:9/v1",
      OPENAI_API_KEY: "secret",
      ANTHROPIC_BASE_URL: "http://127.0.0.1:9",
      ANTHROPIC_API_KEY: "secret",
      OPENAI_MODEL: "policy",
      OUTRIGGER_RUN_ID: "run",
      OUTRIGGER_ROLLOUT_ID: "r",
      OUTRIGGER_ATTEMPT_ID: "r.1",
    });
  });

  it("does not show the harness what only the verifier may know", () => {
    const shown = visibleTask(task, ["answer"]);
    expect(shown.fields).toEqual({ question: "2 + 2", parts: [{ text: "a" }] });
    const asks = { ...harness, fromTask: { ANSWER: "answer" } };
    expect(() => buildHarnessEnvironment(asks, shown, identity, endpoints, {})).toThrow(
      /task t has no field answer/,
    );
  });
});
