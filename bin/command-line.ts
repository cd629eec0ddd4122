import { Command, CommanderError } from "commander";
import { invocation } from "../runtime/invocation.ts";
import { packageVersion } from "../runtime/package-version.ts";
import { reportFailure } from "./report-failure.ts";

interface Subcommand {
  readonly summary: string;
  /** Does more than print: it goes on when nobody reads what it says. */
  readonly goesOn?: true;
  readonly load: () => Promise<Command>;
}

/** Loaded only when asked for: a sidecar must not pay for the trainer's libraries at start-up. */
const subcommands: Readonly<Record<string, Subcommand>> = {
  run: {
    summary: "train: start controller, sidecar and backend for an experiment file",
    goesOn: true,
    load: async () => (await import("./commands/run.ts")).runCommand(),
  },
  controller: {
    summary: "serve the controller alone: ingest, store, rollouts, HTTP API",
    goesOn: true,
    load: async () => (await import("./commands/controller.ts")).controllerCommand(),
  },
  sidecar: {
    summary: "proxy a harness's model traffic and stream what was sampled",
    goesOn: true,
    load: async () => (await import("./commands/sidecar.ts")).sidecarCommand(),
  },
  backend: {
    summary: "serve a trainer backend and its policy; check a configured one",
    goesOn: true,
    load: async () => (await import("./commands/backend.ts")).backendCommand(),
  },
  backends: {
    summary: "list the trainer backends, what each can do, and what is installed here",
    load: async () => (await import("./commands/backends.ts")).backendsCommand(),
  },
  rollouts: {
    summary: "list and show rollouts and their calls",
    load: async () => (await import("./commands/rollouts.ts")).rolloutsCommand(),
  },
  policy: {
    summary: "list a run's policies; go back to a checkpoint",
    load: async () => (await import("./commands/policy.ts")).policyCommand(),
  },
  report: {
    summary: "compare runs: curves, before and after, settings that differ",
    load: async () => (await import("./commands/report.ts")).reportCommand(),
  },
  assemble: {
    summary: "turn recorded calls into training samples, offline",
    load: async () => (await import("./commands/assemble.ts")).assembleCommand(),
  },
  simulate: {
    summary: "run a schedule on a virtual clock",
    load: async () => (await import("./commands/simulate.ts")).simulateCommand(),
  },
};

/** What the first words of a command line ask for; `help run` is about `run`. */
export function wantedSubcommand(argv: readonly string[]): string | undefined {
  const words = argv.filter((argument) => !argument.startsWith("-"));
  return words[0] === "help" ? words[1] : words[0];
}

/** Whether the command goes on working when its output is closed. */
export function goesOnUnread(argv: readonly string[]): boolean {
  return subcommands[wantedSubcommand(argv) ?? ""]?.goesOn === true;
}

/**
 * Runs a command. Gives the exit code of a failure, which has been reported: 2 for what the user can
 * mend, usage included; undefined where it went well or the command has set one itself.
 */
export async function runCommandLine(argv: readonly string[]): Promise<number | undefined> {
  const program = new Command("outrigger")
    .description("Reinforcement learning for agents that already exist.")
    .version(packageVersion());
  const wanted = wantedSubcommand(argv);
  for (const [name, { summary, load }] of Object.entries(subcommands)) {
    const command = name === wanted ? await load() : new Command(name);
    program.addCommand(command.summary(summary));
  }
  explainUsageErrors(program, invocation());
  try {
    await program.parseAsync([...argv], { from: "user" });
    return undefined;
  } catch (error) {
    if (!(error instanceof CommanderError)) return reportFailure(error);
    // It has been printed; help and version that were asked for are no failure.
    return error.exitCode === 0 ? undefined : 2;
  }
}

function explainUsageErrors(command: Command, path: string): void {
  command.exitOverride().showHelpAfterError(`(see: ${path} --help)`);
  for (const child of command.commands) explainUsageErrors(child, `${path} ${child.name()}`);
}
