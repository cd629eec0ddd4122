import type { FetchRoutes } from "../../backends/tinker/server/start-tinker-server.ts";
import { encodeResult } from "./tinker-protobuf.ts";

/**
 * How other Tinker servers differ from this project's, put before one that trains for real:
 * - `outrigger`: not at all;
 * - `skyrl` (0.4): a saved name given again is 409, also in the same call sent twice; a future that
 *   is not done is 408, a failed one 400; results of samples and gradients are protobuf; there is
 *   no `forward` in JSON;
 * - `verl` (verl_tinker): sequence ids are ignored; one global model, which may be loaded into at
 *   any time; every future says `try_again` once, can be read once, and is then "already
 *   retrieved"; failures are 200 with category "Application"; nothing can be unloaded or deleted.
 */
export type TinkerDialect = "outrigger" | "skyrl" | "verl";

/**
 * What goes wrong with a request: `refused` (503 before it is looked at), `gateway` (502 after it
 * has been carried out), `lost` (carried out, then the connection breaks), `unseen` (the connection
 * breaks before it is carried out).
 */
export type Fault = "refused" | "gateway" | "lost" | "unseen";

export interface TinkerDialectOptions {
  readonly dialect?: TinkerDialect;
  /** Asked for each request. */
  readonly fault?: (path: string) => Fault | undefined;
  /** Told of each training call that the server carries out. */
  readonly onCarriedOut?: (path: string) => void;
}

type Json = Record<string, unknown>;

const trainingCalls = new Set([
  "forward_backward",
  "optim_step",
  "save_weights",
  "save_weights_for_sampler",
  "load_weights",
]);

const globalModel = "verl-global-model";

export function withDialect(options: TinkerDialectOptions): (fetch: FetchRoutes) => FetchRoutes {
  return (inner) => {
    const answer = dialectOf(inner, options.dialect);
    return async (request, env) => {
      /** The connection breaks before the answer. */
      const broken = (): Response => {
        env?.outgoing?.destroy();
        return new Response(null);
      };
      const path = new URL(request.url).pathname.replace("/api/v1/", "");
      const fault = options.fault?.(path);
      if (fault === "refused") return reply({ detail: "Server not ready" }, 503);
      if (fault === "unseen") return broken();
      const text = await request.text();
      const response = await answer(request.method, path, text);
      if (trainingCalls.has(path) && response.status === 200) options.onCarriedOut?.(path);
      if (fault === "gateway") return reply("Bad Gateway", 502);
      return fault === "lost" ? broken() : response;
    };
  };
}

const reply = (body: unknown, status = 200): Response =>
  new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json" } });

type Answer = (method: string, path: string, text: string) => Promise<Response>;

function dialectOf(fetch: FetchRoutes, dialect: TinkerDialect | undefined): Answer {
  const inner: Answer = async (method, path, text) =>
    fetch(
      new Request(`http://inner/api/v1/${path}`, {
        method,
        ...(method === "GET" || method === "DELETE" ? {} : { body: text }),
      }),
    );
  if (dialect === undefined || dialect === "outrigger") return inner;
  return dialect === "verl" ? verl(inner) : skyrl(inner);
}

function skyrl(inner: Answer): Answer {
  const names = new Set<string>();
  return async (method, path, text) => {
    if (path === "forward") return reply({ detail: "Not Found" }, 404);
    const body = (text === "" ? {} : JSON.parse(text)) as Json;
    if (path === "create_model" && body["lora_config"] === undefined) {
      return reply({ detail: [{ loc: ["body", "lora_config"], msg: "Field required" }] }, 422);
    }
    if (path.startsWith("save_weights")) {
      const name = `${String(body["model_id"])}/${path}/${String(body["path"])}`;
      if (names.has(name)) {
        return reply({ detail: `Checkpoint '${String(body["path"])}' already exists` }, 409);
      }
      names.add(name);
    }
    const response = await inner(method, path, text);
    if (path !== "retrieve_future" || response.status !== 200) return response;
    const result = (await response.json()) as Json;
    if (result["type"] === "try_again") return reply({ detail: "Timeout waiting for result" }, 408);
    if ("error" in result) return reply({ detail: result["error"] }, 400);
    const bytes = encodeResult(result);
    return bytes === undefined
      ? reply(result)
      : new Response(bytes, { headers: { "content-type": "application/x-protobuf" } });
  };
}

function verl(inner: Answer): Answer {
  let modelId: string | undefined;
  let isCreated = false;
  /** Future ids: how often each was asked for while it was done. */
  const reads = new Map<string, number>();
  const stash = new Map<string, Json>();

  const call = async (path: string, body: Json): Promise<Json> =>
    (await (await inner("POST", path, JSON.stringify(body))).json()) as Json;
  const finished = async (id: unknown): Promise<Json> => {
    for (;;) {
      const result = await call("retrieve_future", { request_id: id });
      if (result["type"] !== "try_again") return result;
    }
  };
  const newModel = async (): Promise<void> => {
    const { session_id } = await call("create_session", {});
    const { supported_models } = (await (
      await inner("GET", "get_server_capabilities", "")
    ).json()) as { supported_models: { model_name: string }[] };
    const base_model = supported_models[0]!.model_name;
    const { request_id } = await call("create_model", { session_id, base_model });
    modelId = String((await finished(request_id))["model_id"]);
  };

  const post = async (path: string, body: Json): Promise<Response> => {
    switch (path) {
      case "create_session":
        return reply({ type: path, session_id: "verl-global-session" });
      case "session_heartbeat":
        return reply({ type: path });
      case "create_model": {
        // The one model, with whatever has been trained into it.
        isCreated = true;
        const id = `stash-${stash.size}`;
        stash.set(id, { type: path, model_id: globalModel });
        return reply({ request_id: id, model_id: globalModel });
      }
      case "load_weights":
        await newModel();
        break;
      case "unload_model":
        return reply({ detail: "Not Found" }, 404);
      case "retrieve_future":
        return retrieve(String(body["request_id"]));
    }
    if (path === "save_weights" && !isCreated) {
      return reply({ detail: "No model metadata available; create_model must run first" }, 409);
    }
    // Also before it was created: the one model is there from the start, with its own weights.
    if (modelId === undefined) await newModel();
    const mapped = { ...body };
    delete mapped["seq_id"];
    if ("model_id" in mapped) mapped["model_id"] = modelId;
    return inner("POST", path, JSON.stringify(mapped));
  };

  const retrieve = async (id: string): Promise<Response> => {
    const stashed = stash.get(id);
    const seen = reads.get(id) ?? 0;
    if (seen >= 2) {
      const error = "future id result already retrieved";
      return reply({ error, category: "Application", request_id: id, seen_before: true });
    }
    const response =
      stashed === undefined
        ? await inner("POST", "retrieve_future", JSON.stringify({ request_id: id }))
        : reply(stashed);
    if (response.status === 404) {
      const error = "future id was never seen by this server";
      return reply({ error, category: "Application", request_id: id, seen_before: false });
    }
    const result = (await response.json()) as Json;
    if (result["type"] === "try_again") return reply({ type: "try_again", message: "not yet" });
    reads.set(id, stashed === undefined ? seen + 1 : 2);
    if (stashed === undefined && seen === 0) {
      return reply({ type: "try_again", message: "future completed; retry to retrieve result" });
    }
    return "error" in result
      ? reply({ error: `RuntimeError('${String(result["error"])}')`, category: "Application" })
      : reply(result);
  };

  return async (method, path, text) => {
    if (method === "DELETE") return reply({ detail: "Not Found" }, 404);
    if (method === "GET") return inner(method, path, text);
    return post(path, (text === "" ? {} : JSON.parse(text)) as Json);
  };
}
