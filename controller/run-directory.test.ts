import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { openRunDirectory, type RunDirectory } from "./run-directory.ts";

const root = mkdtempSync(join(tmpdir(), "outrigger-directory-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));
mkdirSync(join(root, "empty"));
writeFileSync(join(root, "file"), "x");
mkdirSync(join(root, "broken"));
writeFileSync(join(root, "broken", "run.json"), "{");

function open(out: string, isResume: boolean): RunDirectory {
  const identity = { runId: "r", name: "n", experimentFile: "f", seed: 1, compute: "auto" };
  return openRunDirectory({
    name: "n",
    out: join(root, out),
    runsRoot: join(root, "runs"),
    isResume,
    newIdentity: () => ({ ...identity, createdAtMs: 0 }),
  });
}

describe("openRunDirectory", () => {
  it("makes a new one, which can be resumed and not begun again", () => {
    open("new", false).release();
    expect(() => open("new", false)).toThrow(/already holds a run/);
    const again = open("new", true);
    expect(again).toMatchObject({ isResumed: true, identity: { runId: "r" } });
    expect(() => open("new", true)).toThrow(/is working on/);
    again.release();
  });

  it.each([
    ["a new run in a file", "file", false, "run-directory-unusable", "it is a file"],
    [
      "a new run below a file",
      "file/run",
      false,
      "run-directory-unusable",
      "cannot be the directory",
    ],
    ["resuming what is not there", "absent", true, "run-missing", "does not exist"],
    ["resuming an empty directory", "empty", true, "run-missing", "holds no run"],
    ["resuming a file", "file", true, "run-missing", "is a file"],
    ["resuming what is damaged", "broken", true, "run-unreadable", "does not describe a run"],
  ])("%s is the user's error and says so", (_, out, isResume, reason, message) => {
    expect(() => open(out, isResume)).toThrow(
      expect.objectContaining({
        reason,
        origin: "user",
        message: expect.stringContaining(message) as string,
      }),
    );
  });
});
