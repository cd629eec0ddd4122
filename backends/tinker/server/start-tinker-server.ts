import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import type { AddressInfo } from "node:net";
import { type ServerType, serve } from "@hono/node-server";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { Logger } from "../../../runtime/log.ts";
import type { Compute } from "../../native/compute/compute.ts";
import { type LoadedModel, loadModel } from "../../native/model/load-model.ts";
import type { NamedWeights } from "../../native/model/named-weights.ts";
import { PolicyEngine } from "../../native/serving/policy-engine.ts";
import { createFutureTable } from "./future-table.ts";
import { tinkerRoutes } from "./tinker-routes.ts";
import type { TinkerServerConfig } from "./tinker-server-config.ts";
import { createTinkerService } from "./tinker-service.ts";
import { createTrainedModel } from "./trained-model.ts";
import { createWeightsSampler } from "./weights-sampler.ts";
import { openWeightsStore } from "./weights-store.ts";

export interface TinkerServerOptions {
  readonly config: TinkerServerConfig;
  readonly log: Logger;
  readonly openCompute: (
    model: LoadedModel,
    weights: NamedWeights,
    config: TinkerServerConfig,
  ) => Promise<{ readonly compute: Compute; readonly reason: string }>;
  /** What stands before the routes, for tests of other servers' behaviour. */
  readonly wrap?: ((fetch: FetchRoutes) => FetchRoutes) | undefined;
  readonly now?: () => number;
}

export type FetchRoutes = (
  request: Request,
  env?: { readonly outgoing?: { destroy(): unknown } },
) => Response | Promise<Response>;

export interface TinkerServer {
  /** Without `/api/v1`. */
  readonly url: string;
  readonly port: number;
  readonly baseModel: string;
  readonly computeReason: string;
  /** Ends what runs; saved weights stay. */
  close(): Promise<void>;
}

/**
 * Serves the Tinker protocol in front of the native compute: any Tinker client can train the model
 * of a directory. Models are trained in full; a LoRA configuration is accepted and has no effect.
 * Models live in memory until they are unloaded, saved weights on disk until they are deleted.
 */
export async function startTinkerServer(options: TinkerServerOptions): Promise<TinkerServer> {
  const { config, log } = options;
  checkExposure(config);
  const model = await loadModel(config.model);
  const limit = model.config.maxSequenceLength;
  const maxLength = Math.min(config.maxLength ?? limit, limit);
  const baseModel = config.modelName ?? model.name;
  const store = await openWeightsStore(config.state, model);
  const open = (): Promise<{ readonly compute: Compute; readonly reason: string }> =>
    options.openCompute(model, model.weights, config);
  const { compute, reason } = await open();
  const { slots, seed, maxWaiting } = config;
  const session = await compute.openDecode({ slots, maxLength });
  const engine = new PolicyEngine({ session, slots, maxLength, version: 0, seed, maxWaiting });
  const stopping = new AbortController();
  // As many as samples that run.
  setMaxListeners(0, stopping.signal);
  const newId = (): string => randomUUID().replaceAll("-", "").slice(0, 16);
  const futures = createFutureTable(newId);
  const service = createTinkerService({
    baseModel,
    store,
    futures,
    sampler: createWeightsSampler({
      compute,
      engine,
      model,
      load: async (path) => (path === "" ? model.weights : store.load(path)),
    }),
    openModel: async (modelId) =>
      createTrainedModel({
        modelId,
        compute: (await open()).compute,
        store,
        maxLength,
        tokenBudget: config.microBatchTokens,
      }),
    maxModels: config.maxModels,
    sessionTimeoutMs: config.sessionTimeoutMs,
    newId,
    now: options.now ?? Date.now,
    log,
    signal: stopping.signal,
  });
  const { holdMs, apiKey, maxBodyBytes } = config;
  const routes = {
    service,
    store,
    futures,
    baseModel,
    maxLength,
    holdMs,
    apiKey,
    maxBodyBytes,
    log,
  };
  const api = tinkerRoutes(routes);
  const fetch: FetchRoutes = (request) => api.fetch(request);
  const http = await listen(options.wrap?.(fetch) ?? fetch, config.host, config.port);
  const { port } = http.address() as AddressInfo;
  const host = config.host.includes(":") ? `[${config.host}]` : config.host;
  return {
    url: `http://${host}:${port}`,
    port,
    baseModel,
    computeReason: reason,
    close: async () => {
      stopping.abort(new Error("the server is shutting down"));
      await new Promise<void>((resolve) => {
        http.close(() => resolve());
        if ("closeAllConnections" in http) http.closeAllConnections();
      });
      await engine.destroy();
      await service.close();
      await compute.close();
    },
  };
}

function checkExposure({ host, apiKey }: TinkerServerConfig): void {
  const isLoopback = host === "localhost" || host === "::1" || host.startsWith("127.");
  if (isLoopback || apiKey !== undefined) return;
  throw new OutriggerError(
    "config-invalid",
    `host ${host} is reachable from outside, and no apiKey is set`,
    { origin: "user", hint: "Set OUTRIGGER_TINKER_API_KEY, or listen on 127.0.0.1." },
  );
}

function listen(routes: FetchRoutes, hostname: string, port: number): Promise<ServerType> {
  return new Promise((resolve, reject) => {
    const fetch = (request: Request, env: unknown) =>
      routes(request, env as Parameters<FetchRoutes>[1]);
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
