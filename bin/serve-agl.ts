import { join } from "node:path";
import { inputOf, noteOf } from "../backends/agl/agl-wire.ts";
import { buildEnvMap } from "../backends/agl/env-map.ts";
import type { AglExperiment } from "../controller/experiment/load-experiment.ts";
import type { Controller } from "../controller/open-controller.ts";
import type { AttemptCustom } from "../controller/rollouts/run-attempt.ts";
import type { RunDirectory } from "../controller/run-directory.ts";
import { samplingOverrides } from "../controller/scheduler/experiment-settings.ts";
import { type ServeOptions, serveExperiment } from "../controller/serve-experiment.ts";
import { OutriggerError } from "../core/outrigger-error.ts";
import { resolveOutcome } from "../core/rollouts/failure-policy.ts";
import type { Logger } from "../runtime/log.ts";
import { openAglRoutes } from "./open-agl-routes.ts";
import { superviseSidecar } from "./supervise-sidecar.ts";

export interface ServeAglOptions {
  readonly experiment: AglExperiment;
  readonly directory: RunDirectory;
  readonly log: Logger;
  readonly signal: AbortSignal;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly now: () => number;
  readonly line: (text: string) => void;
}

/** Agent Lightning's own default of validation rollouts. */
const evalTemperature = 0.7;

/** Serves an experiment to an Agent Lightning trainer until the signal. */
export async function serveAgl(options: ServeAglOptions): Promise<void> {
  const { experiment, directory, log, now, line } = options;
  refuseExposed(experiment);
  await serveExperiment({
    ...options,
    capture: {
      // Its readers see the messages of each request; what looks like a secret is redacted.
      captureText: true,
      redactionPatterns: experiment.capture.redact,
      trainOverrides: samplingOverrides(experiment.sampling.train),
      evalOverrides: samplingOverrides({
        temperature: evalTemperature,
        ...experiment.sampling.eval,
      }),
      requireCanary: true,
      deduplicateRetries: true,
    },
    openRoutes: (parts, served) => openAglRoutes(experiment, parts, served, { log, now }),
    startSidecar: async (request) => {
      const sidecar = await superviseSidecar({ request, readiness: "listening", log, now });
      await sidecar.start();
      return sidecar;
    },
    custom: (places) => agentCustom(experiment, places),
    aroundAttempt: (run, controller) => aroundAttempt(experiment, run, controller, now),
    onServing: ({ apiUrl, sidecarUrl }) => {
      line(`${experiment.name}: Agent Lightning's trainer connects to ${apiUrl}`);
      line(`its key:  the text of ${join(directory.path, "admin-token")}`);
      line(`sidecar:  ${sidecarUrl}`);
      line("serving; Ctrl-C drains and stops");
    },
  });
}

function refuseExposed({ backend: { host, allowRemote } }: AglExperiment): void {
  const isLoopback = host === "localhost" || host === "::1" || host.startsWith("127.");
  if (isLoopback || allowRemote) return;
  throw new OutriggerError("exposed-address", `${host} can be reached from other machines`, {
    origin: "user",
    hint: "Set backend.allowRemote: true if something in front of it encrypts the traffic.",
  });
}

/** What Agent Lightning's runner gives an agent; the key is the attempt's own, never the trainer's. */
function agentCustom(
  { harness }: AglExperiment,
  { sidecarUrl, apiUrl }: { readonly sidecarUrl: string; readonly apiUrl: string },
): AttemptCustom {
  return {
    scopes: harness.mayReward ? ["call", "event", "reward"] : ["call", "event"],
    timeoutMs: (rollout) => noteOf(rollout).config.timeout_seconds * 1000,
    environment: (rollout, attemptId, token) => {
      const id = encodeURIComponent(rollout.rolloutId);
      const attempt = encodeURIComponent(attemptId);
      const mode = rollout.mode === "train" ? "train" : "val";
      const mapped = buildEnvMap(noteOf(rollout).config.local?.env_map ?? {}, inputOf(rollout));
      return {
        AGL_OPENAI_BASE_URL: `${sidecarUrl}/proxy/rollout/${id}/attempt/${attempt}/mode/${mode}/openai/v1`,
        AGL_EVENT_URL: `${apiUrl}/api/rollouts/${id}/attempt/${attempt}/events`,
        AGL_KEY: token,
        ...(mapped.kind === "built" ? mapped.environment : {}),
      };
    },
  };
}

type RunAttempt = Parameters<ServeOptions["aroundAttempt"]>[0];

/** Refuses what can never start, and tells the trainer the verifier's reward as an event. */
function aroundAttempt(
  { reward, failurePolicy }: AglExperiment,
  run: RunAttempt,
  controller: Controller,
  now: () => number,
): RunAttempt {
  return async (rollout, attemptId, ...rest) => {
    const mapped = buildEnvMap(noteOf(rollout).config.local?.env_map ?? {}, inputOf(rollout));
    if (mapped.kind === "unusable") {
      return { reason: "agent-error", detail: "input-unusable", message: mapped.message };
    }
    let result: Awaited<ReturnType<RunAttempt>>;
    try {
      result = await run(rollout, attemptId, ...rest);
    } catch (error) {
      // A task field that the experiment asks for and this input lacks.
      if (!(error instanceof OutriggerError && error.origin === "user")) throw error;
      return { reason: "agent-error", detail: error.reason, message: error.message };
    }
    if (!("verifier" in reward)) return result;
    const { reward: value } = resolveOutcome(result.reason, result.reward, failurePolicy);
    if (value !== undefined) {
      const { rolloutId } = rollout;
      await controller.calls.appendEvents([
        {
          eventId: `${attemptId}.reward`,
          rolloutId,
          attemptId,
          eventType: "reward",
          dataJson: JSON.stringify({ value, source: "verifier", reason: result.reason }),
          atMs: now(),
        },
      ]);
    }
    return result;
  };
}
