import type { RunComparison } from "./compare-runs.ts";

const style = `
body{font:14px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1080px;padding:0 16px;color:#1c2330}
h1{font-size:22px}h2{font-size:17px;margin-top:32px}table{border-collapse:collapse;width:100%}
th,td{padding:3px 8px;border-bottom:1px solid #e3e7ee;text-align:right;overflow-wrap:anywhere}
th:first-child,td:first-child{text-align:left}
.charts{display:flex;flex-wrap:wrap;gap:12px}.charts svg{max-width:100%;height:auto}`;

/** One file that needs nothing else. */
export function comparisonHtml(comparison: RunComparison, charts: readonly string[]): string {
  const { runs, facts, settings } = comparison;
  const labels = runs.map(({ label }) => label);
  const title = labels.join(" against ");
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${escape(title)} · Outrigger</title>
<style>${style}</style></head><body>
<h1>${escape(title)}</h1>
${table(
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
    : table(
        ["setting", ...labels],
        settings.map(({ path, values }) => [path, ...values.map(shownSetting)]),
      )
}
</body></html>
`;
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

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = (tag: string, values: readonly string[]): string =>
    `<tr>${values.map((value) => `<${tag}>${escape(value)}</${tag}>`).join("")}</tr>`;
  return `<table>${cells("th", head)}${rows.map((row) => cells("td", row)).join("")}</table>`;
}

function escape(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
