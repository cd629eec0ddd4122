import { readFileSync } from "node:fs";
import { create } from "@bufbuild/protobuf";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { OutriggerError } from "../core/outrigger-error.ts";
import type {
  Binding as BindingMessage,
  CaptureSettings as CaptureMessage,
  GateCommand,
  PolicyUpdate,
} from "../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { EngineHealthSchema } from "../proto/gen/outrigger/v1/sample_stream_pb.ts";
import { openTokenVerifier, type TokenVerifier } from "../runtime/capability-token.ts";
import type { Logger } from "../runtime/log.ts";
import type { RecordSink } from "./capture/record-sink.ts";
import { asRecord, type JsonRecord, parseJson } from "./dialects/json-value.ts";
import type { GateOrder, GateStatus } from "./gate/gate.ts";
import type { Binding } from "./identity/identity.ts";
import type { CaptureSettings } from "./relay/relay-context.ts";
import type { SidecarConfig } from "./sidecar-config.ts";
import { openUplink, type Uplink } from "./uplink/uplink.ts";
import type { Engine } from "./upstream/engine.ts";
import type { EnginePolicy } from "./upstream/engine-set.ts";

export interface ControllerLinkOptions {
  readonly sidecarId: string;
  readonly harnessUrl: string;
  readonly version: string;
  readonly log: Logger;
  readonly onCapture: (capture: CaptureSettings) => void;
  /** What checks tokens against the controller's key. */
  readonly onVerifier: (verifier: TokenVerifier) => void;
  readonly onGate: (order: GateOrder) => void;
  readonly onPolicy: (policy: EnginePolicy) => void;
  /** Undefined: the controller has none for this sidecar. */
  readonly onBinding: (binding: Binding | undefined) => void;
}

export interface ControllerLink {
  readonly sink: RecordSink;
  reportGate(status: GateStatus): void;
  reportSidecar(report: {
    readonly calls: number;
    readonly incompleteCalls: number;
    readonly inFlight: number;
    readonly engines: readonly Engine[];
  }): void;
  spool(): { readonly spoolBytes: number; readonly droppedRecords: number };
}

/** Between the uplink's messages and the sidecar's own words. */
export function openControllerLink(
  config: SidecarConfig,
  options: ControllerLinkOptions,
): ControllerLink {
  const { sidecarId, harnessUrl, version, log } = options;
  const useTokenKey = tokenKeyUse(options);
  let isPaused = false;
  const applyGate = (command: GateCommand | undefined): void => {
    const order = gateOrder(command);
    if (!order.paused && !isPaused && order.commandId === "") return;
    isPaused = order.paused;
    options.onGate(order);
  };
  const applyPolicy = (update: PolicyUpdate | undefined): void => {
    if (update !== undefined && update.endpoints.length > 0) options.onPolicy(enginePolicy(update));
  };
  const uplink = openUplink({
    controllerAddress: config.controller.address as string,
    ...channelCredentials(config),
    token: () => config.controller.token ?? "",
    hello: () => ({ sidecarId, harnessUrl, version }),
    spoolDir: config.spool.dir,
    spoolMaxBytes: config.spool.maxBytes,
    log,
    handlers: {
      onWelcome: (welcome) => {
        if (welcome.capture !== undefined) options.onCapture(captureSettings(welcome.capture, log));
        void useTokenKey(welcome.tokenPublicKeyPem);
        options.onBinding(bindingFor(welcome.bindings, sidecarId));
        applyPolicy(welcome.policy);
        applyGate(welcome.gate);
      },
      onGate: applyGate,
      onPolicy: applyPolicy,
      onBindings: (update) => options.onBinding(bindingFor(update.bindings, sidecarId)),
    },
  });
  return {
    sink: uplinkSink(uplink),
    reportGate: ({ reason: _reason, ...report }) => uplink.reportGate(report),
    reportSidecar: ({ engines, ...report }) =>
      uplink.reportSidecar({ ...report, engines: engines.map(engineHealth) }),
    spool: () => uplink.status(),
  };
}

/** Each welcome says the key; verifiers remember tokens, so one is kept while its key is. */
function tokenKeyUse({
  onVerifier,
  log,
}: ControllerLinkOptions): (publicKeyPem: string) => Promise<void> {
  let known = "";
  return async (publicKeyPem) => {
    if (publicKeyPem === "" || publicKeyPem === known) return;
    known = publicKeyPem;
    try {
      onVerifier(await openTokenVerifier(publicKeyPem));
    } catch (error) {
      log.error({ error: (error as Error).message }, "the controller's token key is unusable");
    }
  };
}

function uplinkSink(uplink: Uplink): RecordSink {
  let isHealthy = true;
  const note = (outcome: { readonly kept: boolean }): boolean => {
    isHealthy = outcome.kept;
    return outcome.kept;
  };
  return {
    record: (call) => note(uplink.record(call)),
    event: (event) => note(uplink.event(event)),
    get isUnderPressure() {
      return uplink.status().pressure;
    },
    get isHealthy() {
      return isHealthy;
    },
    close: (graceMs) => uplink.close(graceMs),
  };
}

function engineHealth(engine: Engine) {
  return create(EngineHealthSchema, {
    url: engine.url,
    healthy: engine.isHealthy,
    canaryProblem: engine.canary?.problem ?? "",
    canaryDone: engine.canary?.isConclusive === true,
    streamsIds: engine.profile.streamsIds,
  });
}

function gateOrder(command: GateCommand | undefined): GateOrder {
  return {
    commandId: command?.commandId ?? "",
    paused: command?.paused ?? false,
    reason: command?.reason ?? "",
    holdLimitMs: command?.holdLimitMs ?? 0,
    drainLimitMs: command?.drainLimitMs ?? 0,
  };
}

function enginePolicy(update: PolicyUpdate): EnginePolicy {
  return {
    version: Number(update.version),
    endpoints: update.endpoints.map(({ url, apiKey, model, cacheSalt }) => ({
      url,
      apiKey,
      model,
      cacheSalt,
    })),
  };
}

function captureSettings(message: CaptureMessage, log: Logger): CaptureSettings {
  const overrides = (text: string, name: string): JsonRecord => {
    if (text === "") return {};
    const value = asRecord(parseJson(text));
    if (value === undefined) log.error({ name }, "overrides are no JSON object: none apply");
    return value ?? {};
  };
  return {
    capturesText: message.captureText,
    trainOverrides: overrides(message.trainOverridesJson, "train_overrides_json"),
    evalOverrides: overrides(message.evalOverridesJson, "eval_overrides_json"),
    requiresCanary: message.requireCanary,
    deduplicatesRetries: message.deduplicateRetries,
  };
}

/** The latest binding for this sidecar. */
function bindingFor(bindings: readonly BindingMessage[], sidecarId: string): Binding | undefined {
  const own = bindings.filter((binding) => binding.sidecarId === sidecarId).at(-1);
  if (own === undefined) return undefined;
  const { rolloutId, attemptId, mode } = own;
  return { rolloutId, attemptId, mode: mode === "eval" ? "eval" : "train" };
}

function channelCredentials(config: SidecarConfig): { credentials?: ChannelCredentials } {
  const { caFile, certFile, keyFile } = config.controller;
  if (caFile === undefined) return {};
  return {
    credentials: credentials.createSsl(
      readPem(caFile),
      keyFile === undefined ? null : readPem(keyFile),
      certFile === undefined ? null : readPem(certFile),
    ),
  };
}

function readPem(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new OutriggerError("tls-file-unreadable", `cannot read ${path}`, {
      origin: "user",
      hint: "Check controller.caFile, certFile and keyFile.",
      cause,
    });
  }
}
