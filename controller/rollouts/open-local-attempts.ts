import type { ServedExperiment } from "../experiment/load-experiment.ts";
import { type Grader, openVerifier } from "../grading/grader.ts";
import type { Controller } from "../open-controller.ts";
import { plainVariables, runIdVariable } from "../runners/harness-environment.ts";
import type { DispatcherOptions } from "./rollout-dispatcher.ts";
import { type AttemptContext, type AttemptCustom, runAttempt } from "./run-attempt.ts";

/** What attempts on this machine need of the processes beside the controller. */
export interface AttemptProcesses {
  readonly sidecarUrl: string;
  readonly backendReady: () => Promise<void>;
  readonly sidecarReady: () => Promise<void>;
  /** Which of them were not up at some time since then, ms since the epoch. */
  readonly crashedSince: (ms: number) => ReadonlySet<"sidecar" | "backend">;
}

export interface LocalAttemptOptions {
  readonly runId: string;
  readonly experiment: ServedExperiment;
  readonly controller: Controller;
  readonly processes: AttemptProcesses;
  readonly directory: string;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly now: () => number;
  /** Sampled tokens of an attempt that has ended. */
  readonly onTokens: (tokens: number) => void;
  readonly custom?: AttemptCustom;
}

/** Attempts as processes on this machine; the dispatcher's `runAttempt`. */
export interface LocalAttempts {
  readonly run: DispatcherOptions["runAttempt"];
  /** Ends the verifier. */
  close(): Promise<void>;
}

/** How long a token outlives its attempt, and a verifier's its harness's. */
const tokenSlackMs = 60_000;
const verifierSlackMs = 3_600_000;
const settleLimitMs = 60_000;

export function openLocalAttempts(options: LocalAttemptOptions): LocalAttempts {
  const verifier = openExperimentVerifier(options);
  const context = attemptContext(options, verifier);
  return {
    run: (...attempt) => runAttempt(context, ...attempt),
    close: async () => verifier?.close(),
  };
}

function openExperimentVerifier({
  experiment,
  environment,
  directory,
  runId,
}: LocalAttemptOptions): Grader | undefined {
  if (!("verifier" in experiment.reward)) return undefined;
  const { verifier } = experiment.reward;
  const plain = Object.fromEntries(
    plainVariables.flatMap((name) => {
      const value = environment[name];
      return value === undefined ? [] : [[name, value]];
    }),
  );
  return openVerifier({
    ...verifier,
    environment: {
      ...plain,
      ...verifier.environment,
      [runIdVariable]: runId,
    },
    cwd: directory,
  });
}

function attemptContext(
  options: LocalAttemptOptions,
  verifier: Grader | undefined,
): AttemptContext {
  const { experiment, controller, processes, now, custom } = options;
  const { harness } = experiment;
  return {
    runId: options.runId,
    experiment,
    calls: controller.calls,
    verifier,
    whenReady: async () => {
      await processes.backendReady();
      await processes.sidecarReady();
    },
    settleRecords: async (signal) => {
      await processes.sidecarReady();
      return controller.ingest.settle({ timeoutMs: settleLimitMs, signal });
    },
    ...(custom !== undefined && { custom }),
    signTokens: async (rollout, attemptId) => {
      const timeoutMs = custom?.timeoutMs(rollout) ?? harness.timeoutMs;
      const target = {
        rolloutId: rollout.rolloutId,
        attemptId,
        mode: rollout.mode,
        expiresAtMs: now() + timeoutMs + tokenSlackMs,
      };
      return {
        call: await controller.sign({
          ...target,
          scopes: custom?.scopes ?? (harness.mayReward ? ["call", "event", "reward"] : ["call"]),
        }),
        reward: await controller.sign({
          ...target,
          scopes: ["reward", "event"],
          expiresAtMs: target.expiresAtMs + verifierSlackMs,
        }),
      };
    },
    endpoints: () => ({ sidecarUrl: processes.sidecarUrl, model: "policy" }),
    apiUrl: controller.apiUrl,
    crashedSince: (ms) => processes.crashedSince(ms),
    inherited: options.environment,
    now,
    onCalls: (calls) =>
      options.onTokens(calls.reduce((sum, call) => sum + (call.responseIds?.length ?? 0), 0)),
  };
}
