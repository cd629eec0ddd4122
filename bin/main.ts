import { Command } from "commander";
import { packageVersion } from "../runtime/package-version.ts";
import { reportFailure } from "./report-failure.ts";

/** Loaded only when asked for: a sidecar must not pay for the trainer's libraries at start-up. */
const subcommands: Record<string, { summary: string; load: () => Promise<Command> }> = {
  run: {
    summary: "train: start controller, sidecar and backend for an experiment file",
    load: async () => (await import("./commands/run.ts")).runCommand(),
  },
  controller: {
    summary: "serve the controller alone: ingest, store, rollouts, HTTP API",
    load: async () => (await import("./commands/controller.ts")).controllerCommand(),
  },
  sidecar: {
    summary: "proxy a harness's model traffic and stream what was sampled",
    load: async () => (await import("./commands/sidecar.ts")).sidecarCommand(),
  },
  backend: {
    summary: "serve a trainer backend and its policy; check a configured one",
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

async function main(argv: readonly string[]): Promise<void> {
  const program = new Command("outrigger")
    .description("Reinforcement learning for agents that already exist.")
    .version(packageVersion())
    .showHelpAfterError("(outrigger --help lists the commands)");
  const wanted = argv.find((argument) => !argument.startsWith("-"));
  for (const [name, { summary, load }] of Object.entries(subcommands)) {
    const command = name === wanted ? await load() : new Command(name);
    program.addCommand(command.summary(summary));
  }
  await program.parseAsync([...argv], { from: "user" });
}

try {
  await main(process.argv.slice(2));
} catch (error) {
  process.exitCode = reportFailure(error);
}
