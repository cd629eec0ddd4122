import type { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { Logger } from "../../../runtime/log.ts";
import type { FutureTable } from "./future-table.ts";
import { badInput, notFound } from "./request-error.ts";
import type {
  createModelSchema,
  forwardBackwardSchema,
  forwardSchema,
  loadWeightsSchema,
  optimStepSchema,
  SampleInput,
  samplingSessionSchema,
  saveForSamplerSchema,
  saveWeightsSchema,
} from "./request-schemas.ts";
import type { TrainedModel } from "./trained-model.ts";
import type { WeightsSampler } from "./weights-sampler.ts";
import type { WeightsStore } from "./weights-store.ts";

type Json = Readonly<Record<string, unknown>>;
type Input<S extends z.ZodType> = z.output<S>;

export interface TinkerServiceOptions {
  readonly baseModel: string;
  readonly store: WeightsStore;
  readonly sampler: WeightsSampler;
  readonly futures: FutureTable;
  readonly openModel: (modelId: string) => Promise<TrainedModel>;
  readonly maxModels: number;
  /** How long a session without a sign of life keeps its models when others need the room. */
  readonly sessionTimeoutMs: number;
  readonly newId: () => string;
  readonly now: () => number;
  readonly log: Logger;
  /** Ends samples that run when the server stops. */
  readonly signal: AbortSignal;
}

interface OpenModel {
  readonly sessionId: string;
  readonly trained: Promise<TrainedModel>;
}

/** The Tinker protocol's calls, apart from HTTP. Errors are those of `request-error.ts`. */
export interface TinkerService {
  createSession(): Json;
  heartbeat(sessionId: string): Json;
  createModel(input: Input<typeof createModelSchema>): Promise<Json>;
  unloadModel(modelId: string): Promise<Json>;
  info(modelId: string): Promise<Json>;
  forward(input: Input<typeof forwardSchema>): Promise<Json>;
  forwardBackward(input: Input<typeof forwardBackwardSchema>): Promise<Json>;
  optimStep(input: Input<typeof optimStepSchema>): Promise<Json>;
  saveWeights(input: Input<typeof saveWeightsSchema>): Promise<Json>;
  saveForSampler(input: Input<typeof saveForSamplerSchema>): Promise<Json>;
  loadWeights(input: Input<typeof loadWeightsSchema>): Promise<Json>;
  createSamplingSession(input: Input<typeof samplingSessionSchema>): Promise<Json>;
  samplerInfo(id: string): Json;
  sample(input: SampleInput): Promise<Json>;
  close(): Promise<void>;
}

export function createTinkerService(options: TinkerServiceOptions): TinkerService {
  const { baseModel, store, futures, newId, now, log } = options;
  const lastSeen = new Map<string, number>();
  const models = new Map<string, OpenModel>();
  /** Sampling sessions by id, with the path that they sample ("" for the start model). */
  const samplers = new Map<string, string>();

  const touch = (sessionId: string): void => {
    if (!lastSeen.has(sessionId)) throw notFound(`there is no session ${sessionId}`);
    lastSeen.set(sessionId, now());
  };

  const modelOf = async (modelId: string): Promise<TrainedModel> => {
    const model = models.get(modelId);
    if (model === undefined) throw notFound(`there is no model ${modelId}`);
    touch(model.sessionId);
    return model.trained;
  };

  const closeModel = async (modelId: string): Promise<void> => {
    const model = models.get(modelId);
    models.delete(modelId);
    futures.forget(`${modelId}/`);
    await (await model?.trained)?.close();
  };

  /** Models of clients that went away without unloading them. */
  const makeRoom = async (): Promise<void> => {
    if (models.size < options.maxModels) return;
    for (const [id, { sessionId }] of models) {
      if (now() - (lastSeen.get(sessionId) ?? 0) < options.sessionTimeoutMs) continue;
      log.warn({ modelId: id, sessionId }, "a model without a client is unloaded");
      await closeModel(id);
      return;
    }
    throw new OutriggerError(
      "too-many-models",
      `${models.size} models are open already, of ${options.maxModels}; unload one`,
      { origin: "user" },
    );
  };

  const keyOf = (modelId: string, seqId: number | null | undefined): string | undefined =>
    seqId === null || seqId === undefined ? undefined : `${modelId}/${seqId}`;

  const future = (modelId: string, requestId: string): Json => ({
    type: "future",
    request_id: requestId,
    future_id: requestId,
    status: "pending",
    model_id: modelId,
  });

  const start = async (
    call: string,
    input: { readonly model_id: string; readonly seq_id?: number | null | undefined },
    job: (model: TrainedModel) => Promise<Json>,
  ): Promise<Json> => {
    const model = await modelOf(input.model_id);
    const key = keyOf(input.model_id, input.seq_id);
    return future(
      input.model_id,
      futures.start(key, [call, input], () => job(model)),
    );
  };

  const openSampler = (path: string): string => {
    const id = `sampler_${newId()}`;
    samplers.set(id, path);
    return id;
  };

  const samplerPath = (input: SampleInput): string => {
    if (input.sampling_session_id !== null && input.sampling_session_id !== undefined) {
      const path = samplers.get(input.sampling_session_id);
      if (path !== undefined) return path;
      throw notFound(`there is no sampling session ${input.sampling_session_id}`);
    }
    return sourceOf(input);
  };

  const sourceOf = (input: {
    readonly base_model?: string | null | undefined;
    readonly model_path?: string | null | undefined;
  }): string => {
    const { base_model: base, model_path: path } = input;
    // A path says the base model by itself.
    if (path !== null && path !== undefined) return path;
    if (base === null || base === undefined) throw badInput("base_model or model_path is needed");
    checkBase(base);
    return "";
  };

  const checkBase = (name: string): void => {
    if (name !== baseModel)
      throw notFound(`there is no model ${name}; this server has ${baseModel}`);
  };

  return {
    createSession: () => {
      const sessionId = `session_${newId()}`;
      lastSeen.set(sessionId, now());
      return { type: "create_session", session_id: sessionId };
    },
    heartbeat: (sessionId) => {
      touch(sessionId);
      return { type: "session_heartbeat" };
    },
    createModel: async (input) => {
      touch(input.session_id);
      checkBase(input.base_model);
      const key = keyOf(input.session_id, input.model_seq_id);
      const known = key === undefined ? undefined : futures.known(key, ["create_model", input]);
      if (known !== undefined) return { ...future("", known), model_id: null };
      await makeRoom();
      const modelId = `model_${newId()}`;
      const trained = options.openModel(modelId);
      models.set(modelId, { sessionId: input.session_id, trained });
      trained.catch(() => models.delete(modelId));
      const requestId = futures.start(key, ["create_model", input], async () => {
        await trained;
        return { type: "create_model", model_id: modelId, base_model: baseModel, is_lora: false };
      });
      return future(modelId, requestId);
    },
    unloadModel: async (modelId) => {
      await modelOf(modelId);
      const requestId = futures.start(undefined, modelId, async () => {
        await closeModel(modelId);
        return { type: "unload_model", model_id: modelId };
      });
      return future(modelId, requestId);
    },
    info: async (modelId) => {
      await modelOf(modelId);
      return {
        type: "get_info",
        model_id: modelId,
        model_data: { arch: null, model_name: baseModel, tokenizer_id: baseModel },
        model_name: baseModel,
        is_lora: false,
        lora_rank: null,
      };
    },
    forward: (input) =>
      start("forward", input, (model) => model.forward(input.forward_input, false)),
    forwardBackward: (input) =>
      start("forward_backward", input, (model) =>
        model.forward(input.forward_backward_input, true),
      ),
    optimStep: (input) => start("optim_step", input, (model) => model.optimStep(input.adam_params)),
    saveWeights: (input) =>
      start("save_weights", input, (model) =>
        model.saveWeights(input.path ?? `weights-${newId()}`),
      ),
    saveForSampler: (input) =>
      start("save_weights_for_sampler", input, async (model) => {
        const isNamed = input.path !== null && input.path !== undefined;
        const path = await model.saveForSampler(
          isNamed ? (input.path as string) : `sampler-${newId()}`,
        );
        const type = "save_weights_for_sampler";
        return isNamed
          ? { type, path }
          : { type, path: null, sampling_session_id: openSampler(path) };
      }),
    loadWeights: async (input) => {
      await store.check(input.path);
      return start("load_weights", input, (model) =>
        model.loadWeights(input.path, input.optimizer),
      );
    },
    createSamplingSession: async (input) => {
      touch(input.session_id);
      const path = sourceOf(input);
      if (path !== "") await store.check(path);
      return { type: "create_sampling_session", sampling_session_id: openSampler(path) };
    },
    samplerInfo: (id) => {
      const path = samplers.get(id);
      if (path === undefined) throw notFound(`there is no sampling session ${id}`);
      return { sampler_id: id, base_model: baseModel, model_path: path === "" ? null : path };
    },
    sample: async (input) => {
      const path = samplerPath(input);
      if (path !== "") await store.check(path);
      const requestId = futures.start(undefined, null, () =>
        options.sampler.sample(path, input, options.signal),
      );
      return future("", requestId);
    },
    close: async () => {
      for (const id of models.keys()) await closeModel(id);
    },
  };
}
