import process from "node:process";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { goesOnUnread, runCommandLine, wantedSubcommand } from "./command-line.ts";

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
    [
      "a log level that is none",
      ["run", "x.yaml", "--log-level", "loud"],
      /Allowed choices are debug/,
    ],
    [
      "a compute that is none",
      ["run", "x.yaml", "--compute", "banana"],
      /Allowed choices are auto, ort/,
    ],
    [
      "steps below 0",
      ["run", "x.yaml", "--steps", "-3"],
      /--steps.*'-3' is invalid.*whole number, 0 or more/,
    ],
    ["a port that is none", ["sidecar", "--port", "abc"], /--port.*whole number from 0 to 65535/],
    ["no subcommand", ["rollouts"], /Usage: outrigger rollouts/],
  ])("%s: exit code 2 and where to look", async (_what, args, message) => {
    expect(await runCommandLine(args)).toBe(2);
    expect(output).toMatch(message);
  });

  const url = "http://127.0.0.1:2";
  it.each<[string, string[], RegExp]>([
    [
      "a controller that is not there",
      ["rollouts", "list", "--url", url],
      /no controller answers at .*:2: .*ECONNREFUSED/,
    ],
    ["a URL that is none", ["policy", "list", "--url", "127.0.0.1:8791"], /is not the URL/],
    [
      "a token file that is not there",
      ["rollouts", "list", "--url", url, "--token-file", "/none/x"],
      /ENOENT.*\/none\/x/,
    ],
    [
      "a model that is not given",
      ["backend", "native"],
      /model: is missing; give --model, or OUTRIGGER_BACKEND_MODEL/,
    ],
  ])("%s: said without a stack", async (_what, args, message) => {
    expect(await runCommandLine(args)).toBe(2);
    expect(output).toMatch(message);
    expect(output).not.toMatch(/\n {4}at /);
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
