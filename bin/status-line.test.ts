import { describe, expect, it } from "vitest";
import { formatStatus, openStatusLine } from "./status-line.ts";

const status = {
  name: "step 3/16",
  done: 12,
  total: 32,
  notes: ["reward 0.41", "tokens 1234", "staleness 0", "1 min 20 s left"],
};

describe("formatStatus", () => {
  it.each([
    [200, "step 3/16 ▒ 12/32  reward 0.41  tokens 1234  staleness 0  1 min 20 s left"],
    [85, "step 3/16 ▒ 12/32  reward 0.41  tokens 1234  staleness 0  1 min 20 s left"],
    [75, "step 3/16 12/32  reward 0.41  tokens 1234  staleness 0  1 min 20 s left"],
    [65, "step 3/16 ▒ 12/32  reward 0.41  tokens 1234  staleness 0"],
    [60, "step 3/16 12/32  reward 0.41  tokens 1234  staleness 0"],
    [30, "step 3/16 12/32  reward 0.41"],
    [10, "step 3/16"],
    [4, "ste"],
  ])("leaves out what does not fit into %i columns", (columns, text) => {
    const shown = formatStatus(status, columns);
    expect(shown.length).toBeLessThan(columns);
    expect(shown.replace(/[█░]+/, "▒")).toBe(text);
  });

  it("is empty for nothing and full beyond everything", () => {
    const of = (done: number, total: number) =>
      formatStatus({ name: "x", done, total, notes: [] }, 80);
    expect(of(0, 0)).toBe(`x ${"░".repeat(24)} 0/0`);
    expect(of(9, 4)).toBe(`x ${"█".repeat(24)} 4/4`);
  });
});

describe("openStatusLine", () => {
  function onTerminal(isTTY: boolean) {
    let text = "";
    let nowMs = 0;
    const stream = {
      isTTY,
      columns: 40,
      write: (part: string) => {
        text += part;
      },
    };
    const line = openStatusLine(stream, () => nowMs);
    return {
      ...line,
      pass: (ms: number) => {
        nowMs += ms;
      },
      take: () => {
        const taken = text;
        text = "";
        return taken;
      },
    };
  }
  const short = { name: "step 1/2", done: 1, total: 2, notes: [] };

  it("keeps the moving line below the lines that stay", () => {
    const screen = onTerminal(true);
    screen.line("run: here");
    expect(screen.take()).toBe("run: here\n");
    screen.show(short);
    const frame = formatStatus(short, 40);
    expect(screen.take()).toBe(`\r\u001b[2K${frame}`);
    screen.line("warning: something");
    expect(screen.take()).toBe(`\r\u001b[2Kwarning: something\n${frame}`);
    screen.clear();
    expect(screen.take()).toBe("\r\u001b[2K");
    screen.close();
    expect(screen.take()).toBe("");
  });

  it("draws at most eight frames a second", () => {
    const screen = onTerminal(true);
    screen.show(short);
    screen.take();
    screen.show({ ...short, done: 2 });
    expect(screen.take()).toBe("");
    screen.pass(125);
    screen.show({ ...short, done: 2 });
    expect(screen.take()).toContain("2/2");
    screen.close();
  });

  it("writes only the lines where there is no terminal", () => {
    const screen = onTerminal(false);
    screen.show(short);
    screen.line("step 1 done");
    screen.close();
    expect(screen.take()).toBe("step 1 done\n");
  });
});
