import { Agent, request } from "undici";
import { OutriggerError } from "../../core/outrigger-error.ts";
import { linkedAbort } from "../../runtime/linked-abort.ts";

export interface VllmEngineOptions {
  /** Up to and including `/v1`. */
  readonly url: string;
  readonly apiKey?: string | undefined;
  /** Loading may read weights from slow disks. Default 120,000 ms. */
  readonly timeoutMs?: number;
}

/**
 * What a vLLM engine is asked to switch LoRA adapters (it must run with
 * VLLM_ALLOW_RUNTIME_LORA_UPDATING=True). Rejections are `OutriggerError`s of origin `engine`:
 * `engine-unreachable` (retryable: no answer, or 5xx) and `engine-refused`.
 */
export interface VllmEngine {
  readonly url: string;
  /** Loads an adapter; one that is there already, of the same path, is left as it is. */
  load(name: string, path: string, signal?: AbortSignal): Promise<void>;
  /** Unknown to the engine is as good as unloaded. */
  unload(name: string, signal?: AbortSignal): Promise<void>;
  /** Paths of the adapters by name. */
  adapters(signal?: AbortSignal): Promise<ReadonlyMap<string, string>>;
  /** Adapters that requests run or wait with; undefined where the engine does not say. */
  busyAdapters(signal?: AbortSignal): Promise<ReadonlySet<string> | undefined>;
  /** Samples one token and checks that it is this adapter's, with its id and logprob. */
  tryAdapter(name: string, promptIds: readonly number[], signal?: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

interface Answer {
  readonly status: number;
  readonly text: string;
}

export function openVllmEngine(options: VllmEngineOptions): VllmEngine {
  const url = options.url.replace(/\/+$/, "");
  const { timeoutMs = 120_000 } = options;
  const agent = new Agent({ connectTimeout: 10_000 });
  const life = new AbortController();

  const ask = async (path: string, body: unknown, signal?: AbortSignal): Promise<Answer> => {
    const abort = linkedAbort(life.signal, signal);
    try {
      const response = await request(new URL(path, `${url}/`), {
        method: body === undefined ? "GET" : "POST",
        dispatcher: agent,
        signal: abort.signal,
        headersTimeout: timeoutMs,
        bodyTimeout: timeoutMs,
        headers: {
          "content-type": "application/json",
          ...(options.apiKey !== undefined && { authorization: `Bearer ${options.apiKey}` }),
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      return { status: response.statusCode, text: await response.body.text() };
    } catch (error) {
      if (signal?.aborted === true) throw signal.reason;
      throw unreachable(url, path, (error as Error).message, error);
    } finally {
      abort.release();
    }
  };

  const accepted = async (path: string, body: unknown, signal?: AbortSignal): Promise<string> => {
    const answer = await ask(path, body, signal);
    if (answer.status >= 200 && answer.status < 300) return answer.text;
    throw failure(url, path, answer);
  };

  const adapters = async (signal?: AbortSignal): Promise<ReadonlyMap<string, string>> => {
    const { data = [] } = parse(await accepted("models", undefined, signal)) as {
      data?: { id?: unknown; root?: unknown; parent?: unknown }[];
    };
    // The base model has no parent.
    const loaded = data.filter(({ parent }) => typeof parent === "string");
    return new Map(loaded.map(({ id, root }) => [String(id), String(root)]));
  };

  return {
    url,
    adapters,
    load: async (name, path, signal) => {
      const body = { lora_name: name, lora_path: path };
      const answer = await ask("load_lora_adapter", body, signal);
      if (answer.status >= 200 && answer.status < 300) return;
      // Also what a repeated request gets whose first answer was lost.
      if (/already (been )?loaded/i.test(answer.text)) {
        const known = (await adapters(signal)).get(name);
        if (known === path) return;
        throw refused(url, `it has adapter ${name} from ${known ?? "nowhere"}, not from ${path}`);
      }
      throw failure(url, "load_lora_adapter", answer);
    },
    unload: async (name, signal) => {
      const answer = await ask("unload_lora_adapter", { lora_name: name }, signal);
      if (answer.status < 300 || answer.status === 404) return;
      if (/cannot be found|not found|does not exist/i.test(answer.text)) return;
      throw failure(url, "unload_lora_adapter", answer);
    },
    busyAdapters: async (signal) =>
      busyAdaptersOf((await ask("../metrics", undefined, signal)).text),
    tryAdapter: async (name, promptIds, signal) => {
      const body = {
        model: name,
        prompt: promptIds,
        max_tokens: 1,
        temperature: 1,
        logprobs: 0,
        return_token_ids: true,
        // Never an answer from what another version has cached.
        cache_salt: name,
      };
      const said = await ask("completions", body, signal);
      // Loaded, and gone again: it has restarted in between, and can be given it once more.
      if (said.status === 404) throw unreachable(url, "completions", said.text.slice(0, 300));
      if (said.status >= 300) throw failure(url, "completions", said);
      const answer = parse(said.text) as {
        model?: unknown;
        choices?: {
          token_ids?: unknown[];
          logprobs?: { token_logprobs?: (number | null)[] } | null;
        }[];
      };
      const choice = answer.choices?.[0];
      const logprob = choice?.logprobs?.token_logprobs?.[0];
      if (answer.model !== name)
        throw refused(url, `${name} was asked, ${JSON.stringify(answer.model)} answers`);
      if (choice?.token_ids?.length !== 1 || typeof logprob !== "number") {
        throw refused(url, `the answer of ${name} has no token id or no logprob`);
      }
    },
    close: async () => {
      life.abort(new Error("closed"));
      await agent.destroy();
    },
  };
}

/**
 * From vLLM's metrics: `vllm:lora_requests_info{running_lora_adapters="a,b",waiting_lora_adapters=""}
 * TIME`. It keeps lines of earlier states, the newest has the greatest value.
 */
export function busyAdaptersOf(metrics: string): ReadonlySet<string> | undefined {
  let newest: { readonly at: number; readonly names: readonly string[] } | undefined;
  for (const line of metrics.split("\n")) {
    const match = /^vllm:lora_requests_info\{(.*)\}\s+(\S+)/.exec(line);
    const at = Number(match?.[2]);
    if (match === null || !(at >= (newest?.at ?? 0))) continue;
    const names = ["running_lora_adapters", "waiting_lora_adapters"].flatMap((label) => {
      const list = new RegExp(`${label}="([^"]*)"`).exec(match[1] as string)?.[1] ?? "";
      return list.split(",").filter((name) => name !== "");
    });
    newest = { at, names };
  }
  return newest === undefined ? undefined : new Set(newest.names);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function failure(url: string, path: string, { status, text }: Answer): OutriggerError {
  const said = `${path}: ${status} ${text.slice(0, 500)}`;
  if (status >= 500 || status === 429) return unreachable(url, path, said);
  return refused(url, said);
}

const unreachable = (url: string, path: string, message: string, cause?: unknown): OutriggerError =>
  new OutriggerError("engine-unreachable", `engine ${url} does not answer ${path}: ${message}`, {
    origin: "engine",
    retryable: true,
    ...(cause !== undefined && { cause }),
  });

const refused = (url: string, message: string): OutriggerError =>
  new OutriggerError("engine-refused", `engine ${url}: ${message}`, {
    origin: "engine",
    hint: "vLLM needs --enable-lora, a --max-lora-rank as large as backend.loraRank, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and the adapter directory at the same path.",
  });
