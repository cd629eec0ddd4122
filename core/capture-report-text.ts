import type { RunCapture } from "./capture-report.ts";

/** A run's capture report for people: one fact a line, zeros of rare things left out. */
export function formatCaptureReport(run: RunCapture): string {
  const { total } = run;
  if (run.rollouts.length === 0) return "no calls\n";
  const { calls, tokens } = total;
  const lines = [
    `rollouts ${run.rollouts.length}, attempts ${total.attempts}, without a trainable token ${run.zeroCapture}`,
    `calls ${calls.samplings}: delivered ${calls.delivered}, trained ${calls.trained}${list({
      "proven by a later prompt": calls.proven,
      undelivered: calls.undelivered,
      superseded: calls.superseded,
      side: calls.sideCalls,
      empty: calls.empty,
      masked: calls.masked,
    })}`,
    ...optional("records absorbed", { doubled: calls.duplicates, replayed: calls.replays }),
    ...optional("incomplete", calls.incomplete),
    `rows ${total.rows}: conversations ${total.conversations}, merged calls ${total.merged}, branches ${total.branches}`,
    ...optional("breaks between turns", total.breaks),
    `tokens sampled ${tokens.sampled}, trained ${tokens.trained}, in rows ${tokens.rows}`,
    ...optional("tokens not trained", tokens.lost),
    ...optional("drift absorbed", { responses: total.absorbedDrifts }),
    ...optional("over the length limit", total.overLength),
    `logprob coverage ${percent(run.logprobCoverage)}`,
    ...(run.rewardCoverage === null ? [] : [`reward coverage ${percent(run.rewardCoverage)}`]),
  ];
  return `${lines.join("\n")}\n`;
}

function optional(title: string, counts: Readonly<Record<string, number>>): string[] {
  const text = list(counts);
  return text === "" ? [] : [`${title}${text.replace(",", ":")}`];
}

function list(counts: Readonly<Record<string, number>>): string {
  const shown = Object.entries(counts).filter(([, count]) => count > 0);
  return shown.map(([name, count]) => `, ${name} ${count}`).join("");
}

function percent(share: number | null): string {
  if (share === null) return "none";
  return `${(100 * share).toFixed(1)} %`;
}
