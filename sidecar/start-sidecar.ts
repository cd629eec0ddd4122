import { readHarnessSession } from "../adapters/read-harness-session.ts";
import { OutriggerError } from "../core/outrigger-error.ts";
import type { TokenVerifier } from "../runtime/capability-token.ts";
import type { Logger } from "../runtime/log.ts";
import { sleep } from "../runtime/sleep.ts";
import type { FinishedCall } from "./capture/finished-call.ts";
import { openJsonlSink } from "./capture/jsonl-sink.ts";
import type { RecordSink } from "./capture/record-sink.ts";
import { controlRoutes, type Readiness } from "./control-routes.ts";
import type { ControllerLink } from "./controller-link.ts";
import { Gate, type GateOrder, type GateStatus, systemGateClock } from "./gate/gate.ts";
import { createIdSource } from "./id-source.ts";
import type { Binding } from "./identity/identity.ts";
import type { IdentitySources } from "./identity/identity-resolver.ts";
import { createRefusalEvents } from "./identity/refusal-events.ts";
import { createMetrics, type SidecarMetrics } from "./metrics.ts";
import type { CaptureSettings, RelayContext } from "./relay/relay-context.ts";
import type { RetriableCall } from "./relay/retriable-call.ts";
import { RecentCalls } from "./retries/recent-calls.ts";
import { type RefusedIdentity, SidecarServer } from "./server.ts";
import type { SidecarConfig } from "./sidecar-config.ts";
import { runCanary } from "./upstream/canary.ts";
import type { CanaryResult, Engine } from "./upstream/engine.ts";
import { type EnginePolicy, EngineSet } from "./upstream/engine-set.ts";

export interface SidecarOptions {
  readonly config: SidecarConfig;
  readonly version: string;
  readonly log: Logger;
  /** In place of the uplink or the capture file; for tests and embedding. */
  readonly sink?: RecordSink;
}

const reportIntervalMs = 10_000;
const pressurePollMs = 250;
const refusalEventIntervalMs = 10_000;

/** A running sidecar. `close` drains, flushes and stops; `destroy` breaks off. Both idempotent. */
export class Sidecar {
  readonly #config: SidecarConfig;
  readonly #log: Logger;
  readonly #gate: Gate;
  readonly #engines: EngineSet;
  readonly #metrics: SidecarMetrics;
  readonly #server: SidecarServer;
  readonly #newId = createIdSource();
  readonly #refusals = createRefusalEvents(refusalEventIntervalMs, Date.now);
  readonly #stopped = new AbortController();
  #capture: CaptureSettings;
  #verifier: TokenVerifier | undefined;
  /** The controller's settings are here, if only as the last run kept them. */
  #isWelcomed = false;
  #binding: Binding | undefined;
  #sink: RecordSink | undefined;
  #link: ControllerLink | undefined;
  #reportTimer: NodeJS.Timeout | undefined;
  #closing: Promise<void> | undefined;
  /** Base URL for harnesses on this machine, e.g. `http://127.0.0.1:8787`. */
  url = "";
  readonly sidecarId: string;

  static async start(options: SidecarOptions): Promise<Sidecar> {
    refuseExposed(options.config);
    refuseTwoDestinations(options.config);
    const sidecar = new Sidecar(options);
    try {
      await sidecar.#open(options);
    } catch (error) {
      await sidecar.close(0);
      throw error;
    }
    return sidecar;
  }

  private constructor({ config, log }: SidecarOptions) {
    this.#config = config;
    this.#log = log;
    this.sidecarId = config.sidecarId ?? this.#newId("sc_");
    this.#binding = ownBinding(config);
    this.#capture = {
      // With a controller it is the controller that decides, once it has said so.
      capturesText: config.captureText === true && config.controller.address === undefined,
      trainOverrides: {},
      evalOverrides: {},
      requiresCanary: false,
      deduplicatesRetries: config.retries.deduplicate,
    };
    this.#gate = new Gate(systemGateClock, (status) => this.#link?.reportGate(status));
    this.#engines = new EngineSet({
      ...config.engines,
      probe: (engine, signal) => this.#probe(engine, signal),
      log,
      onChange: () => this.#report(),
    });
    this.#metrics = createMetrics(() => this.#readGauges());
    this.#server = new SidecarServer({
      context: this.#relayContext(),
      identity: () => this.#identitySources(),
      control: controlRoutes(
        () => this.#metrics,
        () => this.readiness(),
      ),
      awaitCapacity: () => this.#awaitCapacity(),
      onRefusal: (reason) => this.#metrics.noteRefusal(reason),
      onUnknown: (refused) => this.#recordRefusal(refused),
      keepAliveSweepMs: Math.max(10, Math.min(1_000, config.keepAliveMs / 4)),
    });
  }

  async #open({ config, version, sink }: SidecarOptions): Promise<void> {
    const { address } = config.controller;
    // What only a controller needs; before the port is open, because from then on calls come.
    const link = address === undefined ? undefined : await import("./controller-link.ts");
    const port = await this.#server.listen(config.host, config.port);
    this.url = config.harnessUrl ?? `http://${urlHost(config.host)}:${port}`;
    if (sink !== undefined) this.#sink = sink;
    else if (link === undefined) this.#openFileSink(config.captureFile);
    else {
      this.#link = link.openControllerLink(config, {
        sidecarId: this.sidecarId,
        harnessUrl: this.url,
        version,
        log: this.#log,
        onCapture: (capture) => {
          const capturesText = capture.capturesText && config.captureText !== false;
          this.#capture = { ...capture, capturesText };
          this.#isWelcomed = true;
        },
        onVerifier: (verifier) => {
          this.#verifier = verifier;
        },
        onGate: (order) => this.applyGate(order),
        onPolicy: (policy) => this.updatePolicy(policy),
        onBinding: (binding) => {
          this.#binding = binding ?? ownBinding(config);
        },
      });
      this.#sink = this.#link.sink;
      this.#reportTimer = setInterval(() => this.#report(), reportIntervalMs);
      this.#reportTimer.unref();
    }
    const { urls, apiKey, model } = config.engines;
    if (urls.length > 0) {
      this.updatePolicy({ version: 0, endpoints: urls.map((url) => ({ url, apiKey, model })) });
    }
  }

  applyGate(order: GateOrder): void {
    this.#log.info({ paused: order.paused, reason: order.reason }, "gate");
    this.#gate.apply(order);
  }

  /** The rollout that this sidecar is for, when it is for one. */
  get binding(): Binding | undefined {
    return this.#binding;
  }

  gateStatus(): GateStatus {
    return this.#gate.status();
  }

  updatePolicy(policy: EnginePolicy): void {
    this.#engines.update(policy);
  }

  /** Ready: an engine answers and was probed, and records can be kept. */
  readiness(): Readiness {
    const problems: string[] = [];
    if (this.#closing !== undefined) problems.push("shutting-down");
    if (this.#engines.engines.length === 0) problems.push("no-engine");
    else if (!this.#engines.hasHealthy) problems.push("engine-unreachable");
    else if (this.#engines.isProbing && !this.#gate.isPaused) problems.push("engine-not-probed");
    if (this.#sink?.isHealthy !== true) problems.push("spool-unusable");
    // Until then it has no key to check tokens with, and no other way to know whose a call is.
    if (this.#link !== undefined && !this.#isWelcomed && this.#binding === undefined)
      problems.push("controller-unreachable");
    return { ready: problems.length === 0, problems };
  }

  /** Resolves when each engine has been probed once, or after `waitMs`. */
  async probed(waitMs: number): Promise<readonly Engine[]> {
    await this.#engines.probed(waitMs);
    return this.#engines.engines;
  }

  /** Drains within the grace time, then breaks off; flushes the records. */
  close(graceMs: number = this.#config.graceMs): Promise<void> {
    this.#closing ??= this.#shutDown(graceMs);
    return this.#closing;
  }

  async #shutDown(graceMs: number): Promise<void> {
    const deadline = Date.now() + graceMs;
    this.#gate.close();
    await this.#server.close(graceMs);
    this.#stopped.abort();
    clearInterval(this.#reportTimer);
    await this.#engines.destroy(new Error("the sidecar is shutting down"));
    // Records of calls that were broken off are made on the next turns of the event loop.
    await this.#server.settled();
    await this.#sink?.close(Math.max(1_000, deadline - Date.now()));
  }

  #openFileSink(path: string | undefined): void {
    if (path === undefined) {
      throw new OutriggerError(
        "records-without-destination",
        "the sidecar has neither a controller nor a capture file to give its records to",
        { origin: "user", hint: "Give --controller HOST:PORT, or --capture-file calls.jsonl." },
      );
    }
    this.#sink = openJsonlSink(path, this.#log);
  }

  async #probe(engine: Engine, signal: AbortSignal): Promise<CanaryResult> {
    const { canaryTimeoutMs: timeoutMs } = this.#config.engines;
    for (;;) {
      const admission = await this.#gate.enter(signal);
      if (admission.kind === "admitted") {
        const { passage } = admission;
        // A pause that cannot wait for harnesses' calls does not wait for this one either.
        const drained = new AbortController();
        passage.onDrainLimit = () => {
          drained.abort();
          return true;
        };
        try {
          const either = AbortSignal.any([signal, drained.signal]);
          const result = await runCanary(engine, { signal: either, timeoutMs, newId: this.#newId });
          if (!drained.signal.aborted || signal.aborted) return result;
        } finally {
          passage.leave();
        }
      }
      if (signal.aborted) {
        return {
          problem: "stopped",
          streamsIds: true,
          kind: undefined,
          model: undefined,
          isConclusive: false,
          isUnreachable: false,
        };
      }
    }
  }

  #relayContext(): RelayContext {
    const { limits, retries, keepAliveMs, engines, translation } = this.#config;
    return {
      gate: this.#gate,
      engines: this.#engines,
      recent: new RecentCalls<RetriableCall>({
        windowMs: retries.windowMs,
        maxBytes: limits.maxRecentBytes,
        nowMs: Date.now,
      }),
      limits: { ...limits, keepAliveMs, canaryWaitMs: engines.canaryWaitMs },
      translation: dropUndefined(translation),
      retriesAlwaysMarked: retries.always,
      capture: () => this.#capture,
      record: (call) => this.#record(call),
      noteRefusal: (reason) => this.#metrics.noteRefusal(reason),
      newId: this.#newId,
      nowMs,
    };
  }

  #record(call: FinishedCall): void {
    const wasKept = this.#sink?.record(call) === true;
    this.#metrics.noteCall(call, wasKept);
  }

  /** So that a run shows why an agent's calls are missing. */
  #recordRefusal({ reason, status, dialect }: RefusedIdentity): void {
    // That one says nothing about who called: the sidecar could not look.
    const due = reason === "controller-unreachable" ? undefined : this.#refusals.note(reason);
    if (due === undefined) return;
    this.#log.warn({ ...due, status, dialect }, "refused a call of unknown identity");
    this.#sink?.event({
      eventId: this.#newId("ev_"),
      rolloutId: this.#binding?.rolloutId ?? "",
      attemptId: this.#binding?.attemptId ?? "",
      eventType: "identity-refused",
      dataJson: JSON.stringify({ ...due, status, dialect, sidecarId: this.sidecarId }),
      atMs: Date.now(),
    });
  }

  #identitySources(): IdentitySources {
    const hasController = this.#config.controller.address !== undefined;
    return {
      verifier: this.#verifier,
      hasController,
      binding: this.#binding,
      trustsPath: this.#config.identity.trustPath ?? !hasController,
      bindsSessions: this.#config.identity.bindSessions,
      readSession: readHarnessSession,
    };
  }

  /** A nearly full spool holds calls for a while: slower is better than lost. */
  #awaitCapacity(): Promise<void> | undefined {
    if (this.#sink?.isUnderPressure !== true) return undefined;
    return this.#waitForCapacity();
  }

  async #waitForCapacity(): Promise<void> {
    const deadline = Date.now() + this.#config.limits.pressureHoldMs;
    while (this.#sink?.isUnderPressure === true && Date.now() < deadline) {
      if (this.#stopped.signal.aborted) return;
      await sleep(pressurePollMs, this.#stopped.signal);
    }
  }

  #report(): void {
    this.#link?.reportSidecar({
      calls: this.#metrics.calls,
      incompleteCalls: this.#metrics.incompleteCalls,
      inFlight: this.#gate.status().inFlight,
      engines: this.#engines.engines,
    });
  }

  #readGauges(): ReturnType<Parameters<typeof createMetrics>[0]> {
    const { inFlight, held, paused } = this.#gate.status();
    const { engines, policyVersion } = this.#engines;
    const spool = this.#link?.spool() ?? { spoolBytes: 0, droppedRecords: 0 };
    const { openCalls, bufferedBytes } = this.#server;
    return {
      openCalls,
      bufferedBytes,
      inFlight,
      held,
      paused,
      engines,
      policyVersion,
      ...spool,
    };
  }
}

function ownBinding(config: SidecarConfig): Binding | undefined {
  const { rolloutId, attemptId, mode } = config.binding;
  if (rolloutId !== undefined) return { rolloutId, attemptId, mode };
  // On its own machine a harness author should not have to name anything, unless sessions do.
  return config.controller.address === undefined && !config.identity.bindSessions
    ? { rolloutId: "local", attemptId, mode }
    : undefined;
}

/** Without a controller there are no tokens: whoever reaches the port could use the engine. */
function refuseExposed(config: SidecarConfig): void {
  const isLoopback = /^(127\.|::1$|localhost$)/.test(config.host);
  if (isLoopback || config.controller.address !== undefined || config.identity.allowRemote) return;
  throw new OutriggerError(
    "exposed-without-identity",
    `listening on ${config.host} without a controller would open the engine to the network`,
    {
      origin: "user",
      hint: "Listen on 127.0.0.1, name a controller, or set OUTRIGGER_SIDECAR_IDENTITY_ALLOW_REMOTE=true if that is meant.",
    },
  );
}

function refuseTwoDestinations({ captureFile, controller }: SidecarConfig): void {
  if (captureFile === undefined || controller.address === undefined) return;
  throw new OutriggerError(
    "records-with-two-destinations",
    "records go to the controller or to the capture file, not to both",
    { origin: "user", hint: "Leave out --controller or --capture-file." },
  );
}

function urlHost(host: string): string {
  if (host === "0.0.0.0" || host === "::") return "127.0.0.1";
  return host.includes(":") ? `[${host}]` : host;
}

/** Read once: the getter costs more than the clock. */
const timeOriginMs = performance.timeOrigin;

function nowMs(): number {
  return timeOriginMs + performance.now();
}

function dropUndefined<T extends object>(value: T): { [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined)) as {
    [K in keyof T]?: NonNullable<T[K]>;
  };
}
