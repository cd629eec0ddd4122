import { mkdirSync } from "node:fs";
import { resolve } from "node:path";
import process from "node:process";
import { Command } from "commander";
import { compareRuns, type RunComparison } from "../../controller/report/compare-runs.ts";
import { shownFact, shownSetting } from "../../controller/report/comparison-html.ts";
import { readRun } from "../../controller/report/read-run.ts";
import { writeComparison } from "../../controller/report/write-comparison.ts";

interface ReportFlags {
  readonly out?: string;
  readonly json?: boolean;
}

/** `outrigger report RUN OTHER…`: what became of runs, side by side. */
export function reportCommand(): Command {
  return new Command("report")
    .description("Compare runs: curves, before and after, and the settings that differ.")
    .argument("<runs...>", "directories of runs that have ended")
    .option("--out <dir>", "where comparison.html and .json go (made; default: the first run's)")
    .option("--json", "print the comparison as JSON")
    .addHelpText(
      "after",
      `
Example:
  outrigger report .outrigger/runs/calculator-1 .outrigger/runs/calculator-2`,
    )
    .action(async (directories: string[], flags: ReportFlags) => {
      const runs = [];
      for (const directory of directories) runs.push(await readRun(directory));
      const comparison = compareRuns(runs);
      const directory = resolve(flags.out ?? (directories[0] as string));
      mkdirSync(directory, { recursive: true });
      const file = await writeComparison(directory, comparison);
      const text =
        flags.json === true ? JSON.stringify(comparison, null, 2) : describe(comparison, file);
      process.stdout.write(`${text}\n`);
    });
}

function describe({ runs, facts, settings }: RunComparison, file: string): string {
  const rows = [
    ["", ...runs.map(({ label }) => label)],
    ...facts.map(({ name, values }) => [name, ...values.map(shownFact)]),
    ...(settings.length === 0 ? [] : [[""], ["settings that differ"]]),
    ...settings.map(({ path, values }) => [`  ${path}`, ...values.map(shownSetting)]),
  ];
  const widths = rows[0]?.map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0))) ?? [];
  const lines = rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join("  ")
      .trimEnd(),
  );
  return [...lines, "", `curves: ${file}`].join("\n");
}
