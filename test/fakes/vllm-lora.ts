import { readFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";

/** What answers for one loaded adapter: an OpenAI endpoint with vLLM's fields. */
export interface AdapterPolicy {
  /** Up to and including `/v1`. */
  readonly url: string;
  destroy(): void;
}

export interface VllmLoraOptions {
  readonly baseModel: string;
  /** Opens the policy whose weights `adapter_config.json` names. */
  readonly openPolicy: (
    config: Readonly<Record<string, unknown>>,
    name: string,
  ) => Promise<AdapterPolicy>;
  /** Awaited while an adapter is loaded. */
  readonly whileLoading?: () => Promise<void>;
  /** Told before the load is answered. */
  readonly onLoaded?: (name: string) => void;
  /** Asked before each request; a status is answered instead. */
  readonly fault?: (path: string) => number | undefined;
}

export interface VllmLora {
  readonly url: string;
  readonly loaded: readonly string[];
  /** Those that calls run with. */
  readonly running: readonly string[];
  /** Everything that was loaded and unloaded, in order: `+name`, `-name`. */
  readonly events: readonly string[];
  /** Model names of the samples that were answered, in order. */
  readonly sampled: readonly string[];
  /** The `cache_salt` of each of them. */
  readonly salts: readonly (string | undefined)[];
  /** As after a restart: no adapter is known. */
  forget(): void;
  close(): Promise<void>;
}

interface Loaded {
  readonly path: string;
  readonly policy: AdapterPolicy;
  running: number;
}

/**
 * vLLM's LoRA side, in its words: adapters are loaded from directories and are models by name, a
 * loaded name is refused, an unknown one is 404, and a restarted engine knows none.
 */
export async function openVllmLora(options: VllmLoraOptions): Promise<VllmLora> {
  const adapters = new Map<string, Loaded>();
  const events: string[] = [];
  const sampled: string[] = [];
  const salts: (string | undefined)[] = [];
  const drop = (name: string): void => {
    adapters.get(name)?.policy.destroy();
    adapters.delete(name);
  };

  const load = async (body: Record<string, unknown>, response: ServerResponse): Promise<void> => {
    const [name, path] = [String(body["lora_name"]), String(body["lora_path"])];
    if (adapters.has(name)) {
      return fail(response, 400, `The lora adapter '${name}' has already been loaded.`);
    }
    let config: Record<string, unknown>;
    try {
      config = JSON.parse(await readFile(join(path, "adapter_config.json"), "utf8")) as never;
      await readFile(join(path, "adapter_model.safetensors"));
    } catch {
      return fail(response, 404, `Loading lora ${name} failed: No adapter found for ${path}`);
    }
    await options.whileLoading?.();
    adapters.set(name, { path, policy: await options.openPolicy(config, name), running: 0 });
    events.push(`+${name}`);
    options.onLoaded?.(name);
    response.end(`Success: LoRA adapter '${name}' added successfully.`);
  };

  const unload = (body: Record<string, unknown>, response: ServerResponse): void => {
    const name = String(body["lora_name"]);
    if (!adapters.has(name)) {
      return fail(response, 404, `The lora adapter '${name}' cannot be found.`);
    }
    drop(name);
    events.push(`-${name}`);
    response.end(`Success: LoRA adapter '${name}' removed successfully.`);
  };

  const sample = async (
    path: string,
    body: Record<string, unknown>,
    response: ServerResponse,
  ): Promise<void> => {
    const name = String(body["model"]);
    const adapter = adapters.get(name);
    if (adapter === undefined) return fail(response, 404, `The model \`${name}\` does not exist.`);
    // The policy behind this knows nothing of salts.
    const { cache_salt: salt, ...plain } = body;
    adapter.running += 1;
    try {
      const answer = await fetch(adapter.policy.url + path.slice("/v1".length), {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(plain),
      });
      sampled.push(name);
      salts.push(typeof salt === "string" ? salt : undefined);
      // vLLM does not tell versions.
      const text = (await answer.text()).replace(/,?"policy_versions":\[[^\]]*\]/g, "");
      response.writeHead(answer.status, {
        "content-type": answer.headers.get("content-type") ?? "application/json",
      });
      response.end(text);
    } finally {
      adapter.running -= 1;
    }
  };

  const models = (response: ServerResponse): void => {
    const model = (id: string, root: string, parent: string | null) => ({
      id,
      object: "model",
      owned_by: "vllm",
      root,
      parent,
    });
    const base = options.baseModel;
    const loaded = Array.from(adapters, ([name, { path }]) => model(name, path, base));
    json(response, 200, { object: "list", data: [model(base, base, null), ...loaded] });
  };

  const metrics = (response: ServerResponse): void => {
    const running = [...adapters].flatMap(([name, one]) => (one.running > 0 ? [name] : []));
    response.end(
      `vllm:lora_requests_info{max_lora="4",running_lora_adapters="${running.join(",")}",waiting_lora_adapters=""} ${Date.now() / 1000}\n`,
    );
  };

  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = request.url ?? "/";
    const fault = options.fault?.(path);
    if (fault !== undefined) return fail(response, fault, "injected");
    if (path === "/v1/models") return models(response);
    if (path === "/metrics") return metrics(response);
    if (path === "/health") return void response.end();
    const body = JSON.parse(await textOf(request)) as Record<string, unknown>;
    if (path === "/v1/load_lora_adapter") return load(body, response);
    if (path === "/v1/unload_lora_adapter") return unload(body, response);
    if (path.endsWith("/completions")) return sample(path, body, response);
    fail(response, 404, "Not Found");
  };

  const server = createServer((request, response) => {
    answer(request, response).catch((error: unknown) => fail(response, 500, String(error)));
  });
  await new Promise<void>((go) => server.listen(0, "127.0.0.1", go));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    events,
    sampled,
    salts,
    get running() {
      return [...adapters].flatMap(([name, one]) => (one.running > 0 ? [name] : []));
    },
    get loaded() {
      return [...adapters.keys()];
    },
    forget: () => {
      for (const name of adapters.keys()) drop(name);
    },
    close: async () => {
      for (const name of adapters.keys()) drop(name);
      server.closeAllConnections();
      await new Promise((go) => server.close(go));
    },
  };
}

async function textOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

function fail(response: ServerResponse, code: number, message: string): void {
  const type = code === 404 ? "NotFoundError" : "BadRequestError";
  json(response, code, { error: { message, type, param: null, code } });
}
