/** The frame that every page of the report has; one file that needs nothing else. */
export function htmlPage(title: string, ownStyle: string, body: string): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${escapeHtml(title)} · Outrigger</title>
<style>${style}${ownStyle}</style></head><body>
${body}
</body></html>
`;
}

const style = `
body{font:14px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1080px;padding:0 16px;color:#1c2330}
h1{font-size:22px}h2{font-size:17px;margin-top:32px}table{border-collapse:collapse;width:100%}
th,td{padding:3px 8px;border-bottom:1px solid #e3e7ee;text-align:right}
th:first-child,td:first-child{text-align:left}
.charts{display:flex;flex-wrap:wrap;gap:12px}.charts svg{max-width:100%;height:auto}
`;

export function htmlTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = (tag: string, values: readonly string[]): string =>
    `<tr>${values.map((value) => `<${tag}>${escapeHtml(value)}</${tag}>`).join("")}</tr>`;
  return `<table>${cells("th", head)}${rows.map((row) => cells("td", row)).join("")}</table>`;
}

export function escapeHtml(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
