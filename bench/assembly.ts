// Assembly: throughput on one core, and rows and tokens beside the rule "merge consecutive calls".
//
//   npx tsx bench/assembly.ts [--json]
import { assembleAttempt } from "../core/assembly/assemble-attempt.ts";
import type { CapturedCall } from "../core/assembly/captured-call.ts";
import { mergeConsecutive } from "../core/assembly/testing/merge-consecutive.ts";
import {
  type AttemptHabits,
  plainHabits,
  type RandomAttempt,
  randomAttempt,
  wildHabits,
} from "../core/assembly/testing/random-attempt.ts";
import type { Sample } from "../core/sample.ts";

const sized = { ...plainHabits, promptTokens: 400, responseTokens: 300, vocabulary: 150_000 };

const workloads: Readonly<Record<string, AttemptHabits>> = {
  "one conversation, 200 turns": { ...sized, turns: 200 },
  "4 interleaved subagents, 50 turns each": { ...sized, turns: 200, threads: 4 },
  "best of n: parallel calls and n > 1": { ...sized, turns: 60, parallel: 0.5, choices: 0.5 },
  "everything at once": { ...wildHabits, turns: 60, promptTokens: 200, responseTokens: 150 },
};

const traces: Readonly<Record<string, AttemptHabits>> = {
  "one conversation, 200 turns": { ...plainHabits, turns: 200 },
  "4 interleaved subagents": { ...plainHabits, turns: 40, threads: 4 },
  compaction: { ...plainHabits, turns: 40, compaction: 0.1 },
  branches: { ...plainHabits, turns: 40, branch: 0.2 },
  "retries and replays": { ...plainHabits, turns: 40, retry: 0.15, replay: 0.1, supersede: 0.1 },
  "parallel identical calls, n > 1": { ...plainHabits, turns: 40, parallel: 0.2, choices: 0.2 },
  "thinking stripped from history": { ...plainHabits, turns: 40, strippedThinking: 1 },
  "incomplete and side calls": { ...plainHabits, turns: 40, incomplete: 0.1, sideCall: 0.1 },
  "everything at once": { ...wildHabits, turns: 40 },
};

function countTokens(records: readonly CapturedCall[]): number {
  return records.reduce(
    (sum, call) => sum + (call.promptIds?.length ?? 0) + (call.responseIds?.length ?? 0),
    0,
  );
}

/** Best of several rounds of at least 300 ms of CPU time each, in input tokens per CPU second. */
function measureThroughput(records: readonly CapturedCall[]): number {
  const tokens = countTokens(records);
  let best = 0;
  for (let round = 0; round < 6; round++) {
    const start = process.cpuUsage();
    let times = 0;
    let usedMs = 0;
    while (usedMs < 300) {
      assembleAttempt(records);
      times++;
      const used = process.cpuUsage(start);
      usedMs = (used.user + used.system) / 1000;
    }
    best = Math.max(best, (times * tokens) / (usedMs / 1000));
  }
  return best;
}

interface Outcome {
  readonly rows: number;
  readonly rowTokens: number;
  /** Tokens trained that were sampled, delivered and kept. */
  readonly trained: number;
  /** Tokens that should have been trained and were not. */
  readonly lost: number;
  /** Tokens trained that should not have been. */
  readonly wrong: number;
}

function judge({ truth }: RandomAttempt, samples: readonly Sample[]): Outcome {
  const byCallId = new Map(truth.flatMap((one) => one.callIds.map((id) => [id, one] as const)));
  const wanted = new Set(truth.filter((one) => one.isToBeTrained));
  const total = [...wanted].reduce((sum, one) => sum + one.response.length, 0);
  let trained = 0;
  let all = 0;
  for (const sample of samples) {
    all += sample.lossMask.reduce((sum, mask) => sum + mask, 0);
    for (const callId of sample.callIds) {
      const one = byCallId.get(callId);
      if (one !== undefined && wanted.delete(one)) trained += one.response.length;
    }
  }
  const rowTokens = samples.reduce((sum, sample) => sum + sample.tokenIds.length, 0);
  return { rows: samples.length, rowTokens, trained, lost: total - trained, wrong: all - trained };
}

function addOutcomes(outcomes: readonly Outcome[]): Outcome {
  const sum = (key: keyof Outcome) => outcomes.reduce((total, one) => total + one[key], 0);
  return {
    rows: sum("rows"),
    rowTokens: sum("rowTokens"),
    trained: sum("trained"),
    lost: sum("lost"),
    wrong: sum("wrong"),
  };
}

function compare(habits: AttemptHabits): { readonly tree: Outcome; readonly consecutive: Outcome } {
  const attempts = Array.from({ length: 50 }, (_, seed) => randomAttempt(seed, habits));
  return {
    tree: addOutcomes(attempts.map((one) => judge(one, assembleAttempt(one.records).samples))),
    consecutive: addOutcomes(attempts.map((one) => judge(one, mergeConsecutive(one.records)))),
  };
}

const throughput = Object.entries(workloads).map(([name, habits]) => {
  const { records } = randomAttempt(1, habits);
  return { name, tokens: countTokens(records), perSecond: measureThroughput(records) };
});
const comparison = Object.entries(traces).map(([name, habits]) => ({ name, ...compare(habits) }));

if (process.argv.includes("--json")) {
  console.log(JSON.stringify({ throughput, comparison }, null, 2));
} else {
  console.log("| attempt | input tokens | million tokens/s per core |\n|---|--:|--:|");
  for (const { name, tokens, perSecond } of throughput) {
    console.log(`| ${name} | ${tokens} | ${(perSecond / 1e6).toFixed(0)} |`);
  }
  console.log("\n50 attempts each; prefix tree / merge consecutive calls only:\n");
  console.log(
    "| attempts | rows | tokens in rows | trained tokens | lost tokens | wrongly trained |",
  );
  console.log("|---|--:|--:|--:|--:|--:|");
  for (const { name, tree, consecutive } of comparison) {
    const cells = (["rows", "rowTokens", "trained", "lost", "wrong"] as const).map(
      (key) => `${tree[key]} / ${consecutive[key]}`,
    );
    console.log(`| ${name} | ${cells.join(" | ")} |`);
  }
}
