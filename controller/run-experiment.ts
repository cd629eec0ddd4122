import { join } from "node:path";
import { OutriggerError } from "../core/outrigger-error.ts";
import { invocation, quoteForShell } from "../runtime/invocation.ts";
import { checkEngine } from "./check-engine.ts";
import { keepExperiment } from "./experiment/keep-experiment.ts";
import type { Controller } from "./open-controller.ts";
import { openRunSession, type RunSession, type RunSessionOptions } from "./open-run-session.ts";
import type { RunResult } from "./report/build-result.ts";
import { collectResult } from "./report/collect-result.ts";
import { drainDispatcher } from "./rollouts/drain-dispatcher.ts";
import type { RunDirectory } from "./run-directory.ts";
import { childNotes } from "./runners/child-notes.ts";
import { killLeftovers } from "./runners/kill-leftovers.ts";

export interface RunExperimentOptions extends RunSessionOptions {
  /** For the sample views of the report; absent without a tokenizer. */
  readonly openDecoder: () => Promise<((ids: readonly number[]) => string) | undefined>;
}

/** How long running attempts may go on after the first Ctrl-C. */
const drainMs = 20_000;

/**
 * One session of a run, from wherever the directory says it stands to its end: stores, processes,
 * training, result and report. Everything durable is in the directory, so a session may be killed
 * at any point and another one goes on.
 *
 * @throws OutriggerError what stopped it; `run-stopped` after the signal
 */
export async function runExperiment(options: RunExperimentOptions): Promise<RunResult> {
  const { directory, now } = options;
  const startedAtMs = now();
  keepExperiment(directory.path, options.experiment);
  const children = childNotes(join(directory.path, "children.json"));
  await killLeftovers(directory.identity.runId, children.noted);
  const session = await openRunSession(options, children.note);
  const stopClock = await startClock(session.controller, now);
  let failure: unknown;
  try {
    await train(session, options);
  } catch (error) {
    failure = options.signal.aborted ? stopped(directory) : error;
  }
  try {
    await wind(session, failure === undefined ? 0 : drainMs, options);
    await stopClock();
    await session.scheduleLog.complete();
    const result = await collectResult({
      experiment: options.experiment,
      directory: directory.path,
      runId: directory.identity.runId,
      controller: session.controller,
      compute: session.description.compute,
      policyVersion: session.training.version,
      checkpoint: failure === undefined ? await checkpoint(session) : null,
      failure,
      openDecoder: options.openDecoder,
    });
    options.log.info({ seconds: (now() - startedAtMs) / 1000 }, "session ended");
    if (failure instanceof Error) throw failure;
    return result;
  } finally {
    await session.close();
  }
}

async function train(session: RunSession, options: RunExperimentOptions): Promise<void> {
  const { training } = session;
  await training.prepare();
  await checkEngine(session.controller.ingest, session.backend, options);
  await training.run(options.signal);
}

/** Stops starting things; an update under way is finished, then what runs may end for so long. */
async function wind(
  { dispatcher, training }: RunSession,
  graceMs: number,
  { experiment }: RunExperimentOptions,
): Promise<void> {
  const grace = Math.min(graceMs, experiment.harness.timeoutMs);
  await drainDispatcher(dispatcher, grace, () => training.settle());
}

async function checkpoint({ training }: RunSession): Promise<string> {
  const { location } = await training.checkpoint();
  return location;
}

function stopped({ path, identity }: RunDirectory): OutriggerError {
  const backend = identity.backend === undefined ? "" : ` --backend ${identity.backend}`;
  return new OutriggerError("run-stopped", `stopped; everything so far is in ${path}`, {
    origin: "user",
    hint: `Go on with: ${invocation()} run ${quoteForShell(identity.experimentFile)} --resume --out ${quoteForShell(path)}${backend}`,
  });
}

/** Adds this session to the run's wall time, also when it is killed (to the last tick). */
async function startClock(controller: Controller, now: () => number): Promise<() => Promise<void>> {
  const before = (await controller.steps.fact<number>("wall-ms")) ?? 0;
  const startedAtMs = now();
  const save = (): Promise<void> =>
    controller.steps.setFact("wall-ms", before + now() - startedAtMs);
  const timer = setInterval(() => void save().catch(() => undefined), 1_000);
  return async () => {
    clearInterval(timer);
    await save();
  };
}
