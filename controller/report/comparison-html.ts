import type { RunComparison } from "./compare-runs.ts";

import { escapeHtml, htmlPage, htmlTable } from "./html-page.ts";

const style = `th,td{overflow-wrap:anywhere}`;

/** One file that needs nothing else. */
export function comparisonHtml(comparison: RunComparison, charts: readonly string[]): string {
  const { runs, facts, settings } = comparison;
  const labels = runs.map(({ label }) => label);
  const title = labels.join(" against ");
  return htmlPage(
    title,
    style,
    `<h1>${escapeHtml(title)}</h1>
${htmlTable(
  ["run", ...labels],
  [
    ["name", ...runs.map(({ name }) => name)],
    ["id", ...runs.map(({ runId }) => runId)],
    ["directory", ...runs.map(({ directory }) => directory)],
    ...facts.map(({ name, values }) => [name, ...values.map(shownFact)]),
  ],
)}
<h2>Curves</h2><div class="charts">${charts.join("")}</div>
<h2>Settings that differ</h2>
${
  settings.length === 0
    ? "<p>None.</p>"
    : htmlTable(
        ["setting", ...labels],
        settings.map(({ path, values }) => [path, ...values.map(shownSetting)]),
      )
}`,
  );
}

/** A fact for people: a dash where there is none, few digits where there are many. */
export function shownFact(value: string | number | null): string {
  if (value === null) return "–";
  if (typeof value === "string" || Number.isInteger(value)) return String(value);
  return Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toFixed(3);
}

export function shownSetting(value: unknown): string {
  if (value === null) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
