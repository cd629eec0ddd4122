import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { afterAll, describe, expect, it } from "vitest";
import { type GradeRequest, parseGrade } from "./grade.ts";
import { type Grader, gradeFromEvents, openVerifier } from "./grader.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-grading-"));
const graders: Grader[] = [];
afterAll(async () => {
  await Promise.all(graders.map((grader) => grader.close()));
  rmSync(folder, { recursive: true, force: true });
});

/** Answers what the task says; works for one line and for many. */
const source = `
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { id, task } = JSON.parse(line);
  if (task.do === "crash") { console.error("no such answer"); process.exit(4); }
  if (task.do === "hang") await new Promise(() => setInterval(() => {}, 1000));
  if (task.do === "leave") {
    const script = "setTimeout(() => {}, 60_000)";
    const child = spawn(process.execPath, ["-e", script], { detached: true, stdio: "inherit" });
    child.unref();
    console.log(JSON.stringify({ id, reward: 1, info: { pid: child.pid } }));
  } else if (task.do === "babble") console.log("hello");
  else console.log(JSON.stringify({ id, reward: task.reward, info: { pid: process.pid } }));
}
`;

function verifier(mode: "process" | "persistent", timeoutMs = 20_000): Grader {
  const script = join(folder, "verify.mjs");
  writeFileSync(script, source);
  const grader = openVerifier({
    command: [process.execPath, script],
    mode,
    retries: 0,
    timeoutMs,
    environment: { PATH: process.env["PATH"] ?? "" },
    cwd: folder,
  });
  graders.push(grader);
  return grader;
}

const request = (task: Record<string, unknown>): GradeRequest => ({
  rolloutId: "r",
  attemptId: "r.1",
  task,
  endReason: "succeeded",
  exitCode: 0,
  workspace: folder,
  outputFile: join(folder, "output.log"),
});
const { signal } = new AbortController();

describe.each(["process", "persistent"] as const)("a verifier in mode %s", (mode) => {
  it("grades", async () => {
    const grader = verifier(mode);
    const grades = await Promise.all(
      [1, 0.25, null].map((reward) => grader.grade(request({ reward }), signal)),
    );
    expect(grades.map((g) => (g.kind === "reward" ? g.reward : g.kind))).toEqual([
      1,
      0.25,
      "silent",
    ]);
  });

  it("that crashes gives no reward, says why, and grades the next attempt", async () => {
    const grader = verifier(mode);
    const [crashed, next] = await Promise.all([
      grader.grade(request({ do: "crash" }), signal),
      grader.grade(request({ reward: 1 }), signal),
    ]);
    expect(crashed).toMatchObject({ kind: "failed", detail: "verifier-crashed" });
    expect(JSON.stringify(crashed)).toContain("exited with 4: no such answer");
    expect(next).toMatchObject({ kind: "reward", reward: 1 });
  });

  it("that hangs is ended", async () => {
    const grade = await verifier(mode, 300).grade(request({ do: "hang" }), signal);
    expect(grade).toMatchObject({ kind: "failed", detail: "verifier-timed-out" });
  });

  it("that leaves a child in a session of its own has graded, and can be closed", async () => {
    const grader = verifier(mode);
    const grade = await grader.grade(request({ do: "leave" }), signal);
    expect(grade).toMatchObject({ kind: "reward", reward: 1 });
    await grader.close();
    process.kill((grade as unknown as { info: { pid: number } }).info.pid, "SIGKILL");
  });

  it("that babbles has not graded", async () => {
    const grade = await verifier(mode).grade(request({ do: "babble" }), signal);
    expect(grade).toMatchObject({ kind: "failed", detail: "verifier-answer-invalid" });
  });
});

describe("parseGrade", () => {
  it.each([
    ["0.5", { kind: "reward", reward: 0.5 }],
    ['{"reward": -1, "info": {"why": "x"}}', { kind: "reward", reward: -1, info: { why: "x" } }],
    ['{"reward": null}', { kind: "silent" }],
    ["{}", { kind: "silent" }],
    ['{"reward": "1"}', { kind: "failed", detail: "verifier-answer-invalid" }],
    ["", { kind: "failed", detail: "verifier-answer-invalid" }],
    ["NaN", { kind: "failed", detail: "verifier-answer-invalid" }],
  ])("%s", (line, grade) => expect(parseGrade(line)).toMatchObject(grade));
});

describe("gradeFromEvents", () => {
  const reward = (value: unknown) => ({ eventType: "reward", dataJson: JSON.stringify({ value }) });
  const events = [
    reward(1),
    { eventType: "note", dataJson: "{}" },
    reward(3),
    reward("x"),
    reward(2),
  ];

  it("combines the numbers and passes over the rest", () => {
    expect(gradeFromEvents(events, "last")).toEqual({ kind: "reward", reward: 2 });
    expect(gradeFromEvents(events, "sum")).toEqual({ kind: "reward", reward: 6 });
    expect(gradeFromEvents(events, "max")).toEqual({ kind: "reward", reward: 3 });
  });

  it("is silent without any: a missing reward is not zero", () => {
    expect(gradeFromEvents([events[1] as never], "sum")).toEqual({ kind: "silent" });
  });
});
