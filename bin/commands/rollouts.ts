import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import process from "node:process";
import { Command, Option } from "commander";
import { toCallJson } from "../../controller/api/call-json.ts";
import type { RolloutView } from "../../controller/rollouts/rollout-service.ts";
import { openRunStores } from "../../controller/store/open-run-stores.ts";
import type { StoredRollout } from "../../controller/store/rollout-store.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { invocation } from "../../runtime/invocation.ts";
import { askController, controllerAt } from "../ask-controller.ts";
import { parseCount } from "../option-values.ts";

interface SourceFlags {
  readonly run?: string;
  readonly url?: string;
  readonly tokenFile?: string;
  readonly json?: boolean;
}

interface ListFlags extends SourceFlags {
  readonly state?: string[];
  readonly purpose?: string;
  readonly group?: string;
  readonly after?: number;
  readonly limit: number;
}

const states = ["queued", "running", "succeeded", "failed", "cancelled"] as const;
type State = (typeof states)[number];

/** `outrigger rollouts list|show|calls`: of a run's directory, or of a live controller. */
export function rolloutsCommand(): Command {
  const command = new Command("rollouts").description(
    "List and show rollouts and their calls, from a run's directory or a live controller.",
  );
  withSource(command.command("list").description("rollouts in order of creation"))
    .addOption(new Option("--state <state...>", "only these states").choices([...states]))
    .option("--purpose <name>", "train, eval-0, …")
    .option("--group <id>", "only this group")
    .option("--after <seq>", "only those created after this one", parseCount)
    .option("--limit <number>", "at most so many", parseCount, 500)
    .option("--json", "JSON instead of a table")
    .action(list);
  withSource(command.command("show").description("one rollout with its attempts"))
    .argument("<rollout>")
    .option("--json", "JSON instead of a table")
    .action(show);
  withSource(
    command.command("calls").description("the calls of an attempt as JSON lines, for `assemble`"),
  )
    .argument("<rollout>")
    .option("--attempt <id>", "default: the accepted attempt, else the last one")
    .action(printCalls);
  return command;
}

function withSource(command: Command): Command {
  return command
    .option("--run <dir>", "directory of a run; works while the run is going on")
    .option("--url <url>", "HTTP API of a live controller")
    .option("--token-file <path>", "file with an administrator's token, for --url");
}

async function list(flags: ListFlags): Promise<void> {
  const source = await openSource(flags);
  try {
    const rollouts = await source.list(flags);
    if (flags.json === true) return print(rollouts);
    const head = ["ROLLOUT", "TASK", "PURPOSE", "STATE", "END", "ATTEMPTS", "REWARD"];
    printTable([head, ...rollouts.map(listRow)]);
  } finally {
    await source.close();
  }
}

function listRow(rollout: StoredRollout): string[] {
  return [
    rollout.rolloutId,
    rollout.taskId,
    rollout.purpose,
    rollout.state,
    rollout.endReason ?? "-",
    String(rollout.rollout.attempts.length),
    rollout.reward === undefined ? "-" : String(rollout.reward),
  ];
}

async function show(rolloutId: string, flags: SourceFlags): Promise<void> {
  const source = await openSource(flags);
  try {
    const view = await source.show(rolloutId);
    if (flags.json === true) return print(view);
    const { rollout, attempts, calls } = view;
    printTable([
      ["rollout", rollout.rolloutId],
      ["task", `${rollout.taskId}  ${JSON.stringify(rollout.input)}`],
      ["purpose", `${rollout.purpose} (${rollout.mode})`],
      ["state", rollout.state],
      ["reward", rollout.reward === undefined ? "none" : String(rollout.reward)],
      ["calls", describeCalls(calls)],
      ...(rollout.errorMessage === undefined ? [] : [["message", rollout.errorMessage]]),
    ]);
    process.stdout.write("\n");
    const head = ["ATTEMPT", "END", "DETAIL", "REWARD", "SECONDS", "DIRECTORY"];
    printTable([
      head,
      ...attempts.map((attempt) => [
        attempt.attemptId,
        attempt.endReason ?? "open",
        attempt.detail ?? "-",
        attempt.reward === undefined ? "-" : String(attempt.reward),
        attempt.endedAtMs === undefined
          ? "-"
          : ((attempt.endedAtMs - attempt.leasedAtMs) / 1000).toFixed(1),
        attempt.directory ?? "-",
      ]),
    ]);
  } finally {
    await source.close();
  }
}

/** "3 complete, 2 incomplete (ids-missing 2)" */
export function describeCalls({
  completeCalls,
  incompleteCalls,
}: Pick<RolloutView["calls"], "completeCalls" | "incompleteCalls">): string {
  const reasons = Object.entries(incompleteCalls);
  const sum = reasons.reduce((total, [, count]) => total + count, 0);
  const list = reasons.map(([reason, count]) => `${reason} ${count}`).join(", ");
  return `${completeCalls} complete, ${sum} incomplete${sum === 0 ? "" : ` (${list})`}`;
}

async function printCalls(
  rolloutId: string,
  flags: SourceFlags & { readonly attempt?: string },
): Promise<void> {
  const source = await openSource(flags);
  try {
    const { rollout } = (await source.show(rolloutId)).rollout;
    const attemptId =
      flags.attempt ?? rollout.acceptedAttemptId ?? rollout.attempts.at(-1)?.attemptId;
    if (attemptId === undefined) return;
    for (const call of await source.calls(rolloutId, attemptId)) {
      process.stdout.write(`${JSON.stringify(call)}\n`);
    }
  } finally {
    await source.close();
  }
}

interface Source {
  list(flags: ListFlags): Promise<readonly StoredRollout[]>;
  show(rolloutId: string): Promise<RolloutView>;
  calls(rolloutId: string, attemptId: string): Promise<readonly unknown[]>;
  close(): Promise<void>;
}

async function openSource(flags: SourceFlags): Promise<Source> {
  if (flags.url !== undefined) return openUrl(flags.url, flags.tokenFile);
  if (flags.run !== undefined) return openDirectory(resolve(flags.run));
  throw new OutriggerError("source-missing", "neither --run nor --url was given", {
    origin: "user",
    hint: "Name a run's directory with --run, or a live controller with --url and --token-file.",
  });
}

async function openDirectory(path: string): Promise<Source> {
  if (!existsSync(join(path, "run.db"))) {
    throw new OutriggerError("run-missing", `${path} is not the directory of a run`, {
      origin: "user",
      hint: "Runs are below .outrigger/runs unless --out said otherwise.",
    });
  }
  const stores = await openRunStores(path);
  const { rollouts, calls } = stores;
  return {
    list: (flags) =>
      rollouts.list({
        ...(flags.state !== undefined && { states: flags.state as State[] }),
        ...(flags.purpose !== undefined && { purpose: flags.purpose }),
        ...(flags.group !== undefined && { groupId: flags.group }),
        ...(flags.after !== undefined && { afterSeq: flags.after }),
        limit: flags.limit,
      }),
    show: async (rolloutId) => {
      const rollout = await rollouts.get(rolloutId);
      if (rollout === undefined) throw unknownRollout(rolloutId);
      return {
        rollout,
        attempts: await rollouts.attempts(rolloutId),
        calls: await calls.callCounts(rolloutId),
      };
    },
    calls: async (rolloutId, attemptId) =>
      (await calls.callsOfAttempt(rolloutId, attemptId)).map(toCallJson),
    close: () => stores.close(),
  };
}

function openUrl(url: string, tokenFile: string | undefined): Source {
  const controller = controllerAt(url, tokenFile);
  const get = <T>(path: string): Promise<T> => askController<T>(controller, path);
  const id = encodeURIComponent;
  return {
    list: async (flags) => {
      const query = new URLSearchParams({ limit: String(flags.limit) });
      for (const state of flags.state ?? []) query.append("state", state);
      if (flags.purpose !== undefined) query.set("purpose", flags.purpose);
      if (flags.group !== undefined) query.set("group", flags.group);
      if (flags.after !== undefined) query.set("after", String(flags.after));
      return (await get<{ rollouts: StoredRollout[] }>(`/v1/rollouts?${query.toString()}`))
        .rollouts;
    },
    show: (rolloutId) => get<RolloutView>(`/v1/rollouts/${id(rolloutId)}`),
    calls: async (rolloutId, attemptId) => {
      const path = `/v1/rollouts/${id(rolloutId)}/attempts/${id(attemptId)}/calls`;
      return (await get<{ calls: unknown[] }>(path)).calls;
    },
    close: () => Promise.resolve(),
  };
}

function unknownRollout(rolloutId: string): OutriggerError {
  return new OutriggerError("rollout-unknown", `there is no rollout ${rolloutId}`, {
    origin: "user",
    hint: `\`${invocation()} rollouts list\` shows the ids.`,
  });
}

function print(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`);
}

function printTable(rows: readonly (readonly string[])[]): void {
  const widths: number[] = [];
  for (const row of rows) {
    row.forEach((cell, i) => {
      widths[i] = Math.max(widths[i] ?? 0, cell.length);
    });
  }
  for (const row of rows) {
    const cells = row.map((cell, i) => cell.padEnd(widths[i] ?? 0));
    process.stdout.write(`${cells.join("  ").trimEnd()}\n`);
  }
}
