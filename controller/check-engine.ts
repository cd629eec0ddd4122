import { OutriggerError } from "../core/outrigger-error.ts";
import type { BackendDescription, TrainerBackend } from "../core/trainer-backend.ts";
import { sleep } from "../runtime/sleep.ts";
import type { Experiment } from "./experiment/load-experiment.ts";
import type { IngestServer } from "./ingest/ingest-server.ts";
import type { RunObserver } from "./scheduler/run-observer.ts";

const engineCheckMs = 60_000;
const checkPollMs = 20;

/** @throws OutriggerError `backend-cannot` (user) that names what the backend does not support */
export function checkBackend(experiment: Experiment, description: BackendDescription): void {
  const { loss, correction, klCoefficient } = experiment.algorithm;
  const problems = [
    ...(description.losses.includes(loss.kind) ? [] : [`algorithm.loss.kind ${loss.kind}`]),
    ...(description.corrections.includes(correction.kind)
      ? []
      : [`algorithm.correction.kind ${correction.kind}`]),
    ...(klCoefficient > 0 && !description.supportsKl ? ["algorithm.klCoefficient above 0"] : []),
  ];
  if (problems.length === 0) return;
  throw new OutriggerError(
    "backend-cannot",
    `the ${description.kind} backend does not support ${problems.join(", ")}`,
    {
      origin: "user",
      hint: `It knows the losses ${description.losses.join(", ")} and the corrections ${description.corrections.join(", ")}.`,
    },
  );
}

/** Refuses to train when the engine, asked through the sidecar, gives no token ids or logprobs. */
export async function checkEngine(
  ingest: Pick<IngestServer, "sidecars" | "waitForSidecars">,
  backend: TrainerBackend,
  options: {
    readonly observer: Pick<RunObserver, "warning">;
    readonly signal: AbortSignal;
    readonly now: () => number;
  },
): Promise<void> {
  const { signal } = options;
  const deadline = options.now() + engineCheckMs;
  await ingest.waitForSidecars(1, signal);
  const urls = new Set((await backend.policyEndpoints(signal)).map((endpoint) => endpoint.url));
  for (;;) {
    // A sidecar that has just started may still name the engine of an earlier session.
    const engines = ingest
      .sidecars()
      .flatMap((sidecar) => sidecar.engines)
      .filter((engine) => urls.has(engine.url));
    const bad = engines.find((engine) => engine.canaryDone && engine.canaryProblem !== "");
    if (bad !== undefined) {
      throw new OutriggerError(
        "engine-unusable",
        `the engine ${bad.url} cannot be trained with: ${bad.canaryProblem}`,
        {
          origin: "engine",
          hint: "It must return token ids and logprobs (return_token_ids); see docs/experiments.md.",
        },
      );
    }
    if (engines.length > 0 && engines.every((engine) => engine.canaryDone)) return;
    if (options.now() > deadline) {
      options.observer.warning(
        "the engine's start-up check gave no answer; incomplete calls are counted",
      );
      return;
    }
    await sleep(checkPollMs, signal);
    signal.throwIfAborted();
  }
}
