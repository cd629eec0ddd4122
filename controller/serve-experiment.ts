import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Hono } from "hono";
import { OutriggerError } from "../core/outrigger-error.ts";
import { isTerminal } from "../core/rollouts/rollout-state.ts";
import type { Logger } from "../runtime/log.ts";
import { createCloseStack } from "./close-stack.ts";
import type { AglExperiment } from "./experiment/load-experiment.ts";
import type { CaptureRules } from "./ingest/welcome.ts";
import {
  type Controller,
  type ControllerParts,
  openController,
  wideCapability,
} from "./open-controller.ts";
import { drainDispatcher } from "./rollouts/drain-dispatcher.ts";
import { endAttemptsOnExit } from "./rollouts/end-attempts-on-exit.ts";
import { openLocalAttempts } from "./rollouts/open-local-attempts.ts";
import { requeueLost } from "./rollouts/requeue-lost.ts";
import { type DispatcherOptions, RolloutDispatcher } from "./rollouts/rollout-dispatcher.ts";
import type { AttemptCustom } from "./rollouts/run-attempt.ts";
import { type RunDirectory, writeAtomically } from "./run-directory.ts";
import type { ProcessRequest } from "./run-processes.ts";
import { childNotes } from "./runners/child-notes.ts";
import { runIdVariable } from "./runners/harness-environment.ts";
import { killLeftovers } from "./runners/kill-leftovers.ts";

export interface SidecarHandle {
  readonly url: string;
  whenReady(): Promise<void>;
  /** Since ms since the epoch. */
  wasDownSince(ms: number): boolean;
  close(): Promise<void>;
}

/** What a foreign trainer's API may do with rollouts beyond the service. */
export interface ServedRollouts {
  /** Ends the attempt that runs, if one does, then forgets rollout, calls, events and files. */
  remove(rolloutId: string): Promise<void>;
  /** Ends the open attempt as said, whoever runs it, and the process of it that runs here. */
  endAttempt(rolloutId: string, isSuccess: boolean, message: string | undefined): Promise<void>;
}

type RunAttempt = DispatcherOptions["runAttempt"];

export interface ServeOptions {
  readonly experiment: AglExperiment;
  readonly directory: RunDirectory;
  readonly capture: CaptureRules;
  readonly log: Logger;
  /** Aborted to drain and stop. */
  readonly signal: AbortSignal;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly now: () => number;
  readonly openRoutes: (parts: ControllerParts, rollouts: ServedRollouts) => Promise<Hono>;
  readonly startSidecar: (request: ProcessRequest) => Promise<SidecarHandle>;
  readonly custom: (places: {
    readonly sidecarUrl: string;
    readonly apiUrl: string;
  }) => AttemptCustom;
  /** Wraps what runs an attempt. */
  readonly aroundAttempt: (run: RunAttempt, controller: Controller) => RunAttempt;
  readonly onServing: (places: { readonly apiUrl: string; readonly sidecarUrl: string }) => void;
}

const leaseMs = 60_000;
const drainMs = 20_000;
const lateRecordsMs = 2_000;

/**
 * Serves an experiment to a trainer outside: controller, one sidecar and local attempts, no training
 * of our own. Everything durable is in the directory, so a session may be killed at any point and
 * another one goes on. Waits for: the signal, or a failure that going on cannot cure.
 */
export async function serveExperiment(options: ServeOptions): Promise<void> {
  const { directory, signal, log } = options;
  const children = childNotes(join(directory.path, "children.json"));
  await killLeftovers(directory.identity.runId, children.noted);
  const failed = new AbortController();
  const onFatal = (error: unknown): void => failed.abort(error);
  const session = await openServing(options, children.note, onFatal);
  session.wake();
  try {
    await new Promise<void>((resolve) => {
      for (const end of [signal, failed.signal]) {
        if (end.aborted) resolve();
        else end.addEventListener("abort", () => resolve(), { once: true });
      }
    });
    log.info("draining");
  } finally {
    await session.close();
  }
  if (failed.signal.aborted) throw failed.signal.reason as Error;
}

interface Serving {
  wake(): void;
  close(): Promise<void>;
}

async function openServing(
  options: ServeOptions,
  noteProcess: ProcessRequest["noteProcess"],
  onFatal: (error: unknown) => void,
): Promise<Serving> {
  const { experiment, directory, log, now } = options;
  const { runId, seed } = directory.identity;
  const late: { dispatcher?: RolloutDispatcher } = {};
  const running = new Map<string, Promise<unknown>>();
  const stop = async (rolloutId: string): Promise<void> =>
    late.dispatcher?.stop(rolloutId, "cancelled");
  const controller = await openController({
    directory: directory.path,
    host: experiment.backend.host,
    grpcPort: 0,
    httpPort: experiment.backend.port,
    capture: options.capture,
    failurePolicy: experiment.failurePolicy,
    log,
    now,
    hooks: {
      onQueued: () => late.dispatcher?.wake(),
      onChanged: () => undefined,
      stopAttempt: stop,
      status: async () => ({
        runId,
        name: experiment.name,
        rollouts: await controller.rollouts.countByState(),
      }),
    },
    openRoutes: (parts) =>
      options.openRoutes(parts, servedRollouts(options, parts, { running, stop })),
  });
  const closing = createCloseStack();
  closing.add(() => controller.close());
  try {
    await requeueLost(controller.rollouts, {
      owner: runId,
      policy: experiment.failurePolicy,
      nowMs: now(),
    });
    const adminToken = await controller.sign(wideCapability("admin", now()));
    writeAtomically(join(directory.path, "admin-token"), adminToken, 0o600);
    const sidecar = await options.startSidecar({
      directory: directory.path,
      runId,
      seed,
      grpcAddress: controller.grpcAddress,
      sidecarToken: await controller.sign(wideCapability("sidecar", now())),
      environment: { [runIdVariable]: runId },
      noteProcess,
      onGivenUp: onFatal,
    });
    closing.add(() => sidecar.close());
    const places = { apiUrl: controller.apiUrl, sidecarUrl: sidecar.url };
    const attempts = openLocalAttempts({
      runId,
      experiment,
      controller,
      processes: {
        sidecarUrl: sidecar.url,
        backendReady: async () => undefined,
        sidecarReady: () => sidecar.whenReady(),
        crashedSince: (ms) => new Set(sidecar.wasDownSince(ms) ? (["sidecar"] as const) : []),
      },
      directory: directory.path,
      environment: options.environment,
      now,
      onTokens: () => undefined,
      custom: options.custom(places),
    });
    closing.add(() => attempts.close());
    const wrapped = options.aroundAttempt(attempts.run, controller);
    const dispatcher = new RolloutDispatcher({
      store: controller.rollouts,
      policy: experiment.failurePolicy,
      concurrency: experiment.harness.concurrency,
      owner: runId,
      leaseMs,
      directory: join(directory.path, "rollouts"),
      log,
      now,
      runAttempt: (rollout, ...rest) => {
        const attempt = wrapped(rollout, ...rest);
        const over = attempt.catch(() => undefined);
        running.set(rollout.rolloutId, over);
        void over.then(() => {
          if (running.get(rollout.rolloutId) === over) running.delete(rollout.rolloutId);
        });
        return attempt;
      },
      onChanged: () => undefined,
      onFatal: (error) => {
        // The trainer may remove a rollout at any moment, also between two looks at it.
        if (error instanceof OutriggerError && error.reason === "rollout-unknown") {
          late.dispatcher?.wake();
        } else onFatal(error);
      },
    });
    late.dispatcher = dispatcher;
    const release = endAttemptsOnExit(dispatcher);
    closing.add(async () => release());
    closing.add(() => drainDispatcher(dispatcher, drainMs));
    writeAtomically(
      join(directory.path, "controller.json"),
      JSON.stringify({ ...places, grpcAddress: controller.grpcAddress }),
    );
    options.onServing(places);
    return { wake: () => dispatcher.wake(), close: () => closing.close() };
  } catch (error) {
    await closing.close().catch((also: unknown) => log.warn({ err: also }, "closing failed"));
    throw error;
  }
}

function servedRollouts(
  { experiment, directory, now }: ServeOptions,
  { rollouts, calls, ingest, service }: ControllerParts,
  here: {
    /** The attempts that run on this machine. */
    readonly running: ReadonlyMap<string, Promise<unknown>>;
    stop(rolloutId: string): Promise<void>;
  },
): ServedRollouts {
  return {
    remove: async (rolloutId) => {
      const rollout = await rollouts.get(rolloutId);
      if (rollout === undefined) return;
      if (!isTerminal(rollout.state)) await service.cancel(rolloutId);
      const attempt = here.running.get(rolloutId);
      if (attempt !== undefined) {
        await attempt;
        // What the killed harness had under way would come after the removal.
        await ingest.settle({ timeoutMs: lateRecordsMs });
      }
      await rollouts.remove(rolloutId);
      await calls.removeRollout(rolloutId);
      await rm(join(directory.path, "rollouts", rolloutId), { recursive: true, force: true });
    },
    endAttempt: async (rolloutId, isSuccess, message) => {
      const rollout = await rollouts.get(rolloutId);
      const open = rollout?.rollout.attempts.find((attempt) => attempt.state !== "ended");
      if (open === undefined) return;
      const { attemptId } = open;
      const reason = isSuccess ? ("succeeded" as const) : ("agent-error" as const);
      await rollouts.end(
        rolloutId,
        { type: "attempt-ended", attemptId, reason },
        message === undefined ? {} : { message },
        experiment.failurePolicy,
        now(),
      );
      if (here.running.has(rolloutId)) await here.stop(rolloutId);
    },
  };
}
