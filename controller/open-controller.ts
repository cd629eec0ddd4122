import { randomUUID } from "node:crypto";
import type { AddressInfo } from "node:net";
import { type ServerType, serve } from "@hono/node-server";
import type { Hono } from "hono";
import { OutriggerError } from "../core/outrigger-error.ts";
import type { FailurePolicy } from "../core/rollouts/failure-policy.ts";
import {
  type Capability,
  type CapabilityScope,
  openTokenSigner,
  openTokenVerifier,
  type TokenVerifier,
} from "../runtime/capability-token.ts";
import { generateTokenKeys, loadOrCreateTokenKeys } from "../runtime/capability-token-keys.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "../runtime/grpc-server.ts";
import type { Logger } from "../runtime/log.ts";
import { createHttpApi, type PolicyControl } from "./api/http-api.ts";
import { type IngestServer, serveSampleStream } from "./ingest/ingest-server.ts";
import type { CaptureRules, ServedPolicy } from "./ingest/welcome.ts";
import { createRolloutService, type RolloutService } from "./rollouts/rollout-service.ts";
import type { CallStore } from "./store/call-store.ts";
import { openRunStores } from "./store/open-run-stores.ts";
import type { RolloutStore } from "./store/rollout-store.ts";
import type { StepStore } from "./store/step-store.ts";

export interface ControllerOptions {
  /** Holds the database and, unless it is for one session only, the token key. */
  readonly directory: string;
  /** Tokens of `session` end with this process, and their key is in no file. Default: `kept`. */
  readonly tokenKey?: "kept" | "session";
  /** Lease owner of the attempts that this program runs and grades itself. */
  readonly ownRunner?: string;
  readonly host: string;
  /** 0 takes any free port. */
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly capture: CaptureRules;
  readonly policy?: ServedPolicy;
  readonly failurePolicy: FailurePolicy;
  readonly log: Logger;
  readonly now: () => number;
  /** What happens elsewhere when rollouts are created or changed through the API. */
  readonly hooks: ControllerHooks;
  /** A foreign trainer's API, served on the same port. Made before a sidecar can connect. */
  readonly openRoutes?: (parts: ControllerParts) => Promise<Hono>;
}

/** What a foreign trainer's API is built on. */
export interface ControllerParts
  extends Pick<Controller, "rollouts" | "steps" | "calls" | "ingest" | "service" | "sign"> {
  readonly verifier: TokenVerifier;
}

export interface ControllerHooks {
  readonly onQueued: () => void;
  readonly onChanged: (rolloutId: string, isOver: boolean) => void;
  stopAttempt?(rolloutId: string): Promise<void>;
  readonly status: () => Promise<Readonly<Record<string, unknown>>>;
  /** Of a run that this controller trains. */
  readonly policyControl?: PolicyControl;
}

/** Stores, ingest and HTTP API: the controller without what schedules and runs. */
export interface Controller {
  readonly rollouts: RolloutStore;
  readonly steps: StepStore;
  readonly calls: CallStore;
  readonly ingest: IngestServer;
  readonly service: RolloutService;
  readonly grpcAddress: string;
  readonly apiUrl: string;
  sign(capability: Capability): Promise<string>;
  close(): Promise<void>;
}

const grpcGraceMs = 2_000;
const longMs = 366 * 86_400_000;

export async function openController(options: ControllerOptions): Promise<Controller> {
  const { directory, host, log, now, hooks } = options;
  const stores = await openRunStores(directory);
  const { rollouts, calls } = stores;
  const keys =
    options.tokenKey === "session" ? generateTokenKeys() : loadOrCreateTokenKeys(directory);
  const verifier = await openTokenVerifier(keys.publicKeyPem);
  const service = createRolloutService({
    rollouts,
    calls,
    policy: options.failurePolicy,
    ...(options.ownRunner !== undefined && { ownRunner: options.ownRunner }),
    now,
    ...hooks,
  });
  const sign = await openTokenSigner(keys.privateKeyPem);
  const grpc = createGrpcServer();
  const ingest = serveSampleStream(grpc, {
    store: calls,
    verifier,
    tokenPublicKeyPem: keys.publicKeyPem,
    capture: options.capture,
    ...(options.policy !== undefined && { policy: options.policy }),
    log,
  });
  const api = createHttpApi({
    service,
    calls,
    verifier,
    sidecars: () => ingest.sidecars(),
    status: () => hooks.status(),
    policy: hooks.policyControl,
    signCallToken: (rolloutId, attemptId, mode) =>
      sign({ rolloutId, attemptId, scopes: ["call"], mode, expiresAtMs: now() + 86_400_000 }),
    now,
    randomId: () => randomUUID().replaceAll("-", ""),
  });
  let http: ServerType | undefined;
  const close = async (): Promise<void> => {
    await ingest.close();
    await closeGrpcServer(grpc, grpcGraceMs);
    if (http !== undefined) await closeHttpServer(http);
    await stores.close();
  };
  let grpcPort: number;
  try {
    if (options.openRoutes !== undefined) {
      const { steps } = stores;
      const parts = { rollouts, steps, calls, ingest, service, sign, verifier };
      api.route("/", await options.openRoutes(parts));
    }
    grpcPort = await bindGrpcServer(grpc, { host, port: options.grpcPort });
    http = await listen(api.fetch, host, options.httpPort);
  } catch (error) {
    // What is half open would keep the process alive.
    await close();
    throw error;
  }
  const { port } = http.address() as AddressInfo;
  return {
    rollouts,
    steps: stores.steps,
    calls,
    ingest,
    service,
    grpcAddress: `${host}:${grpcPort}`,
    apiUrl: `http://${host}:${port}`,
    sign,
    close,
  };
}

/** A capability that is for no rollout in particular: a sidecar's or an administrator's. */
export function wideCapability(scope: CapabilityScope, nowMs: number): Capability {
  return {
    rolloutId: "*",
    attemptId: "*",
    scopes: [scope],
    mode: "train",
    expiresAtMs: nowMs + longMs,
  };
}

function listen(
  fetch: Parameters<typeof serve>[0]["fetch"],
  hostname: string,
  port: number,
): Promise<ServerType> {
  return new Promise((resolve, reject) => {
    const server = serve({ fetch, hostname, port }, () => resolve(server));
    server.once("error", (cause) => {
      reject(
        new OutriggerError(
          "port-unavailable",
          `cannot listen on ${hostname}:${port}: ${cause.message}`,
          { origin: "user", hint: "Choose another port, or 0 for any free one.", cause },
        ),
      );
    });
  });
}

function closeHttpServer(server: ServerType): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    if ("closeAllConnections" in server) server.closeAllConnections();
  });
}
