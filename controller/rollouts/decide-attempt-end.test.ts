import { describe, expect, it } from "vitest";
import { type AttemptFacts, decideAttemptEnd } from "./decide-attempt-end.ts";

const exited = (exitCode: number) => ({ kind: "exited", exitCode }) as const;
const facts = (over: Partial<AttemptFacts>): AttemptFacts => ({
  end: exited(0),
  callCount: 3,
  isSettled: true,
  crashed: new Set(),
  ...over,
});

describe("decideAttemptEnd", () => {
  it.each([
    ["exits well", {}, "succeeded", undefined],
    ["exits with an error", { end: exited(3) }, "agent-error", "exit-code-3"],
    ["never calls", { callCount: 0 }, "never-called", "exit-code-0"],
    ["fails without a call", { end: exited(1), callCount: 0 }, "never-called", "exit-code-1"],
    ["hangs", { end: { kind: "timed-out" } }, "timed-out", undefined],
    [
      "hangs before its first call",
      { end: { kind: "timed-out" }, callCount: 0 },
      "timed-out",
      undefined,
    ],
    ["crashes", { end: { kind: "killed", signal: "SIGSEGV" } }, "agent-error", "killed-by-SIGSEGV"],
    [
      "is killed",
      { end: { kind: "killed", signal: "SIGKILL" } },
      "infra-error",
      "killed-by-system",
    ],
    [
      "cannot be started",
      { end: { kind: "not-started", message: "ENOENT" }, callCount: 0 },
      "infra-error",
      "harness-not-started",
    ],
    [
      "succeeds while the sidecar dies",
      { crashed: new Set(["sidecar"]) },
      "infra-error",
      "sidecar-restarted",
    ],
    ["succeeds, its records missing", { isSettled: false }, "infra-error", "records-missing"],
    ["succeeds while the backend dies", { crashed: new Set(["backend"]) }, "succeeded", undefined],
    [
      "fails while the backend dies",
      { crashed: new Set(["backend"]), end: exited(1) },
      "infra-error",
      "backend-restarted",
    ],
    [
      "never calls because the backend died",
      { crashed: new Set(["backend"]), callCount: 0 },
      "infra-error",
      "backend-restarted",
    ],
    [
      "is cancelled",
      { end: { kind: "cancelled" }, stopCause: "cancelled" },
      "cancelled",
      undefined,
    ],
    [
      "is cut as a straggler",
      { end: { kind: "cancelled" }, stopCause: "tail-cut" },
      "truncated",
      "tail-cut",
    ],
    [
      "is stopped with the controller",
      { end: { kind: "cancelled" }, stopCause: "controller-stopped" },
      "infra-error",
      "controller-stopped",
    ],
  ] as [string, Partial<AttemptFacts>, string, string | undefined][])(
    "a harness that %s",
    (_name, over, reason, detail) => {
      const end = decideAttemptEnd(facts(over));
      expect(end.reason).toBe(reason);
      expect(end.detail).toBe(detail);
    },
  );
});
