import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { Command } from "commander";
import { backendKinds, capabilityProblems } from "../../backends/backend-kinds.ts";
import { type Experiment, loadExperiment } from "../../controller/experiment/load-experiment.ts";
import { updateSettingsOf } from "../../controller/scheduler/experiment-settings.ts";
import { findGapBreaches } from "../../controller/scheduler/find-gap-breaches.ts";
import { OutriggerError } from "../../core/outrigger-error.ts";
import type { PolicyEndpoint, TrainerBackend, UpdateResult } from "../../core/trainer-backend.ts";
import { invocation } from "../../runtime/invocation.ts";
import { openLog } from "../../runtime/log.ts";
import { sampleCanary } from "../sample-canary.ts";
import { openExperimentBackend, type StartedBackend } from "../start-backend.ts";

/** `outrigger backend check EXPERIMENT`: one real, tiny update on the backend it names. */
export function backendCheckCommand(): Command {
  return new Command("check")
    .description("Try the backend of an experiment: sample, one tiny update, sample again.")
    .argument("<experiment>", "YAML file, as for `outrigger run`")
    .addHelpText(
      "after",
      `
Runs in a directory of its own and leaves no run behind. Ends with status 1 when the backend cannot
be used as the experiment wants, and says why.`,
    )
    .action(async (file: string) => check(file));
}

async function check(file: string): Promise<void> {
  const experiment = loadExperiment(file);
  const say = (what: string): void => void process.stdout.write(`${what}\n`);
  refuseIncapable(experiment);
  say(`ok  the ${experiment.backend.kind} backend can do what ${experiment.name} asks for`);
  const directory = mkdtempSync(join(tmpdir(), "outrigger-check-"));
  let started: StartedBackend | undefined;
  try {
    started = await openExperimentBackend(experiment, {
      directory,
      seed: experiment.seed,
      environment: {},
      log: openLog({ level: "warn", process: "backend-check" }),
      now: Date.now,
      onStarted: () => undefined,
      onGivenUp: (error) => say(`!!  ${error.message}`),
    });
    await started.start();
    await tryBackend(started.backend, experiment, say);
  } finally {
    await started?.backend.close();
    await started?.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/**
 * Refuses an experiment whose backend cannot do what its algorithm says.
 *
 * @throws OutriggerError `backend-cannot` (origin user) with every problem
 */
export function refuseIncapable(experiment: Experiment): void {
  const settings = updateSettingsOf(experiment, 0);
  const { kind } = experiment.backend;
  const problems = capabilityProblems(kind, backendKinds[kind], settings);
  if (problems.length === 0) return;
  throw new OutriggerError(
    "backend-cannot",
    `the experiment asks for what its backend cannot do:\n${problems.map((p) => `  ${p}`).join("\n")}`,
    { origin: "user", hint: `\`${invocation()} backends\` lists what each backend can do.` },
  );
}

async function tryBackend(
  backend: TrainerBackend,
  experiment: Experiment,
  say: (what: string) => void,
): Promise<void> {
  const { model, compute, maxSequenceLength } = await backend.describe();
  say(`ok  it answers: ${model}, ${compute}, ${maxSequenceLength} tokens`);
  const before = await endpointOf(backend);
  const samples = [await sampleCanary(before, 1), await sampleCanary(before, -1)];
  say(`ok  the policy at ${before.url} gives token ids and logprobs (version ${before.version})`);
  const result = await backend.update({
    updateId: "check",
    fromVersion: before.version,
    settings: updateSettingsOf(experiment, 0),
    samples,
  });
  checkResult(result, before, experiment);
  say(
    `ok  one update: ${result.trainedTokenCount} tokens, logprob gap ${result.logprobGap.meanAbs.toExponential(1)} on average`,
  );
  const after = await endpointOf(backend);
  await sampleCanary(after, 1);
  say(`ok  the policy serves version ${after.version}`);
}

async function endpointOf(backend: TrainerBackend): Promise<PolicyEndpoint> {
  const [endpoint] = await backend.policyEndpoints();
  if (endpoint !== undefined) return endpoint;
  throw new OutriggerError("backend-serves-nothing", "the backend names no policy endpoint", {
    origin: "backend",
    hint: "See the backend's own log.",
  });
}

function checkResult(
  result: UpdateResult,
  { version }: PolicyEndpoint,
  { limits }: Experiment,
): void {
  const fail = (message: string, hint: string): never => {
    throw new OutriggerError("backend-check-failed", message, { origin: "backend", hint });
  };
  if (!result.applied || result.version !== version + 1) {
    fail(`the update made version ${result.version} of ${version}`, "See the backend's own log.");
  }
  const breaches = findGapBreaches(result.logprobGap, limits.logprobGap.stop, "stop");
  if (breaches.length > 0) {
    fail(breaches.join("\n"), "Do both have the same weights, precision and temperature?");
  }
}
