import { OutriggerError } from "../../core/outrigger-error.ts";
import { bindGrpcServer, closeGrpcServer, createGrpcServer } from "../../runtime/grpc-server.ts";
import type { Logger } from "../../runtime/log.ts";
import type { Compute } from "./compute/compute.ts";
import { type LoadedModel, loadModel } from "./model/load-model.ts";
import type { NamedWeights } from "./model/named-weights.ts";
import type { NativeConfig } from "./native-config.ts";
import { addNativeService } from "./native-service.ts";
import { PolicyEngine } from "./serving/policy-engine.ts";
import { openPolicyServer, type PolicyServer } from "./serving/policy-server.ts";
import { openStateStore, type StateStore, type TrainingState } from "./state/state-store.ts";
import { createNativeTrainer } from "./training/native-trainer.ts";

export interface OpenedCompute {
  readonly compute: Compute;
  /** Why this library and device, for people. */
  readonly reason: string;
}

export interface NativeProcessOptions {
  readonly config: NativeConfig;
  readonly log: Logger;
  readonly openCompute: (
    model: LoadedModel,
    weights: NamedWeights,
    config: NativeConfig,
  ) => Promise<OpenedCompute>;
}

export interface NativeProcess {
  readonly policyUrl: string;
  readonly grpcPort: number;
  readonly policyPort: number;
  /** "onnxruntime-node 1.30 (cpu, 2 threads)" */
  readonly compute: string;
  readonly computeReason: string;
  readonly version: number;
  /** Stops listening; running responses and a running update finish within `graceMs`. */
  close(graceMs: number): Promise<void>;
}

/**
 * Starts policy server and trainer service over one model. The state directory wins over the model
 * directory, so a restarted process goes on exactly where the killed one had committed.
 */
export async function startNativeProcess(options: NativeProcessOptions): Promise<NativeProcess> {
  const { config, log } = options;
  checkExposure(config);
  const model = await loadModel(config.model);
  const maxLength = maxLengthOf(config, model);
  const store = await openStateStore(config.state, model);
  const state = await openState(store, model);
  const { compute, reason } = await options.openCompute(model, state.weights, config);
  if (state.optimizer !== undefined) await compute.setOptimizerState(state.optimizer);
  // The first commit needs moments in the compute's own shape.
  if (state.optimizer === undefined) {
    const optimizer = await compute.optimizerState();
    await store.commit({ record: state.record, weights: state.weights, optimizer });
  }
  const { slots, seed, maxWaiting } = config;
  const session = await compute.openDecode({ slots, maxLength });
  const version = state.record.version;
  const engine = new PolicyEngine({ session, slots, maxLength, version, seed, maxWaiting });
  const modelName = config.modelName ?? model.name;
  const policy = await openPolicyServer({
    engine,
    model,
    modelName,
    host: config.host,
    port: config.policyPort,
    apiKey: config.apiKey,
    log,
  });
  const trainer = createNativeTrainer({
    compute,
    engine,
    store,
    state,
    openReference: async () => (await options.openCompute(model, model.weights, config)).compute,
    maxLength,
    tokenBudget: config.microBatchTokens,
    log,
  });
  const server = createGrpcServer();
  const description = describeCompute(compute);
  const policyUrl = config.policyUrl ?? policy.url;
  addNativeService(server, {
    trainer,
    description: {
      model: modelName,
      compute: description,
      computeReason: reason,
      maxSequenceLength: maxLength,
      policyUrl,
    },
    apiKey: config.apiKey,
  });
  const grpcPort = await bindGrpcServer(server, { host: config.host, port: config.grpcPort }).catch(
    async (error: unknown) => {
      await closeServing(policy, engine, 0);
      throw error;
    },
  );
  return {
    policyUrl,
    grpcPort,
    policyPort: policy.port,
    compute: description,
    computeReason: reason,
    get version() {
      return trainer.version;
    },
    close: async (graceMs) => {
      await Promise.all([closeGrpcServer(server, graceMs), closeServing(policy, engine, graceMs)]);
      await trainer.close();
      await compute.close();
    },
  };
}

async function closeServing(
  policy: PolicyServer,
  engine: PolicyEngine,
  graceMs: number,
): Promise<void> {
  const timer = setTimeout(() => {
    policy.destroy();
    void engine.destroy();
  }, graceMs);
  await policy.close();
  await engine.close();
  clearTimeout(timer);
}

async function openState(
  store: StateStore,
  model: LoadedModel,
): Promise<Pick<TrainingState, "record" | "weights"> & { optimizer?: TrainingState["optimizer"] }> {
  const saved = await store.load();
  if (saved !== undefined) return saved;
  return {
    record: { format: "outrigger-checkpoint/1", version: 0, updates: [] },
    weights: model.weights,
  };
}

function maxLengthOf(config: NativeConfig, model: LoadedModel): number {
  const limit = model.config.maxSequenceLength;
  if ((config.maxLength ?? 0) <= limit) return config.maxLength ?? limit;
  throw new OutriggerError(
    "config-invalid",
    `maxLength ${config.maxLength} is over the model's max_position_embeddings ${limit}`,
    { origin: "user", hint: "Lower maxLength or leave it out." },
  );
}

function checkExposure({ host, apiKey }: NativeConfig): void {
  const isLoopback = host === "localhost" || host === "::1" || host.startsWith("127.");
  if (isLoopback || apiKey !== undefined) return;
  throw new OutriggerError(
    "config-invalid",
    `host ${host} is reachable from outside, and no apiKey is set`,
    { origin: "user", hint: "Set OUTRIGGER_BACKEND_API_KEY, or listen on 127.0.0.1." },
  );
}

function describeCompute({ description }: Compute): string {
  const { library, version, device, threads } = description;
  const parts = threads === undefined ? device : `${device}, ${threads} threads`;
  return `${library} ${version} (${parts})`;
}
