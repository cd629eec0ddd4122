import { Hono } from "hono";
import { bodyLimit } from "hono/body-limit";
import { z } from "zod";
import { OutriggerError } from "../../../core/outrigger-error.ts";
import type { Logger } from "../../../runtime/log.ts";
import type { FutureTable } from "./future-table.ts";
import { badInput, statusOfReason } from "./request-error.ts";
import * as schemas from "./request-schemas.ts";
import type { TinkerService } from "./tinker-service.ts";
import type { WeightsStore } from "./weights-store.ts";

export interface TinkerRoutesOptions {
  readonly service: TinkerService;
  readonly store: WeightsStore;
  readonly futures: FutureTable;
  readonly baseModel: string;
  readonly maxLength: number;
  /** How long `retrieve_future` is held before it says `try_again`. */
  readonly holdMs: number;
  /** Callers must send it as `X-API-Key`; undefined asks for nothing. */
  readonly apiKey: string | undefined;
  readonly maxBodyBytes: number;
  readonly log: Logger;
}

/** The Tinker REST surface in JSON, as the official client up to 0.19 and this project's speak it. */
export function tinkerRoutes(options: TinkerRoutesOptions): Hono {
  const { service, store, futures, baseModel, apiKey, log } = options;
  const api = new Hono();
  api.use(
    bodyLimit({
      maxSize: options.maxBodyBytes,
      onError: () => {
        throw new OutriggerError(
          "body-too-large",
          `the body is over ${options.maxBodyBytes} bytes`,
          {
            origin: "user",
          },
        );
      },
    }),
  );
  api.use(async (context, next) => {
    const isOpen = apiKey === undefined || context.req.path.endsWith("/healthz");
    if (!isOpen && context.req.header("x-api-key") !== apiKey) {
      throw new OutriggerError("unauthenticated", "the API key is missing or wrong", {
        origin: "user",
      });
    }
    await next();
  });
  api.onError((error, context) => {
    const reason = error instanceof OutriggerError ? error.reason : "internal";
    const status = statusOfReason[reason] ?? 500;
    if (status === 500) log.error({ err: error, path: context.req.path }, "request failed");
    return context.json({ detail: error.message, error: error.message }, status);
  });
  api.notFound((context) =>
    context.json({ detail: `${context.req.method} ${context.req.path} is not served here` }, 404),
  );

  /** POST routes: a schema and what answers it. */
  const post = <S extends z.ZodType>(
    path: string,
    schema: S,
    answer: (input: z.output<S>) => unknown,
  ): void => {
    api.post(`/api/v1/${path}`, async (context) =>
      context.json((await answer(parse(schema, await context.req.text()))) as object),
    );
  };

  const capabilities = {
    supported_models: [{ model_name: baseModel, max_context_length: options.maxLength }],
  };
  api.get("/api/v1/healthz", (context) => context.json({ status: "ok" }));
  api.on(["GET", "POST"], "/api/v1/get_server_capabilities", (context) =>
    context.json(capabilities),
  );
  post("client/config", z.unknown(), () => ({
    pjwt_auth_enabled: false,
    credential_default_source: "api_key",
    parallel_fwdbwd_chunks: false,
    proto_write_fwdbwd: false,
  }));
  post("telemetry", z.unknown(), () => ({ status: "accepted" }));
  post("create_session", schemas.createSessionSchema, () => service.createSession());
  post("session_heartbeat", schemas.sessionSchema, (input) => service.heartbeat(input.session_id));
  post("create_model", schemas.createModelSchema, (input) => service.createModel(input));
  post("unload_model", schemas.modelSchema, (input) => service.unloadModel(input.model_id));
  post("get_info", schemas.modelSchema, (input) => service.info(input.model_id));
  post("forward", schemas.forwardSchema, (input) => service.forward(input));
  post("forward_backward", schemas.forwardBackwardSchema, (input) =>
    service.forwardBackward(input),
  );
  post("optim_step", schemas.optimStepSchema, (input) => service.optimStep(input));
  post("save_weights", schemas.saveWeightsSchema, (input) => service.saveWeights(input));
  post("save_weights_for_sampler", schemas.saveForSamplerSchema, (input) =>
    service.saveForSampler(input),
  );
  post("load_weights", schemas.loadWeightsSchema, (input) => service.loadWeights(input));
  post("create_sampling_session", schemas.samplingSessionSchema, (input) =>
    service.createSamplingSession(input),
  );
  post("asample", schemas.sampleSchema, (input) => service.sample(input));
  post("weights_info", schemas.weightsInfoSchema, async ({ tinker_path: path }) => {
    await store.check(path);
    // The official client makes a LoRA model of what this says before it loads a state, and needs
    // a rank for it; models are trained in full here whatever it is.
    const parts = { train_unembed: true, train_mlp: true, train_attn: true };
    return { base_model: baseModel, is_lora: true, lora_rank: 1, ...parts };
  });
  api.get("/api/v1/samplers/:id", (context) =>
    context.json(service.samplerInfo(context.req.param("id"))),
  );
  api.get("/api/v1/training_runs/:id/checkpoints", async (context) => {
    const saved = await store.list(context.req.param("id"));
    const checkpoints = saved.map(({ path, kind, name, savedAtMs }) => ({
      checkpoint_id: `${kind}/${name}`,
      checkpoint_type: kind === "weights" ? "training" : "sampler",
      time: new Date(savedAtMs).toISOString(),
      tinker_path: path,
    }));
    return context.json({ checkpoints });
  });
  api.delete("/api/v1/training_runs/:id/checkpoints/:kind/:name", async (context) => {
    const { id, kind, name } = context.req.param();
    await store.remove(`tinker://${id}/${kind}/${name}`);
    return context.body(null, 204);
  });
  api.post("/api/v1/retrieve_future", async (context) => {
    const { request_id: id } = parse(schemas.futureSchema, await context.req.text());
    const state = await futures.wait(id, options.holdMs, context.req.raw.signal);
    if (state.kind === "done") return context.json(state.result);
    if (state.kind === "pending") {
      return context.json({ type: "try_again", request_id: id, queue_state: "active" });
    }
    return context.json({ error: state.message, category: state.isUsers ? "user" : "server" });
  });
  return api;
}

function parse<S extends z.ZodType>(schema: S, text: string): z.output<S> {
  let json: unknown;
  try {
    json = text === "" ? {} : (JSON.parse(text) as unknown);
  } catch (error) {
    throw badInput(`the body is not JSON: ${(error as Error).message}`);
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.slice(0, 10).map((i) => `${i.path.join(".")}: ${i.message}`);
  throw badInput(problems.join("; "));
}
