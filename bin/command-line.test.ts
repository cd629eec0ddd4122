import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { goesOnUnread, runCommandLine, wantedSubcommand } from "./command-line.ts";

const folder = mkdtempSync(join(tmpdir(), "outrigger-command-line-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

let output = "";
beforeEach(() => {
  output = "";
  for (const stream of [process.stdout, process.stderr]) {
    vi.spyOn(stream, "write").mockImplementation((text) => {
      output += String(text);
      return true;
    });
  }
});
afterEach(() => {
  vi.restoreAllMocks();
});

describe("the command line", () => {
  it.each<[string, string[], RegExp]>([
    ["an unknown command", ["trian"], /unknown command 'trian'.*\n\(see: .* --help\)/],
    [
      "an unknown option",
      ["report", "a", "--jsn"],
      /unknown option.*\n[^]*\(see: .* report --help\)/,
    ],
    [
      "a missing argument",
      ["rollouts", "show"],
      /missing required argument.*\n\(see: .* rollouts show --help\)/,
    ],
    ["no subcommand", ["rollouts"], /Usage: outrigger rollouts/],
  ])("%s: exit code 2 and where to look", async (_what, args, message) => {
    expect(await runCommandLine(args)).toBe(2);
    expect(output).toMatch(message);
  });

  it.each([["--help"], ["--version"], ["report", "--help"], ["help", "report"]])(
    "%s %s is no failure",
    async (...args) => {
      expect(await runCommandLine(args.filter(Boolean))).toBeUndefined();
      if (args.includes("report")) expect(output).toContain("--out <dir>");
    },
  );

  it("goes on unread where a command does more than print", () => {
    expect(goesOnUnread(["run", "x.yaml"])).toBe(true);
    expect(goesOnUnread(["backend", "native"])).toBe(true);
    expect(goesOnUnread(["rollouts", "list"])).toBe(false);
    expect(goesOnUnread([])).toBe(false);
    expect(wantedSubcommand(["help", "run"])).toBe("run");
  });
});
