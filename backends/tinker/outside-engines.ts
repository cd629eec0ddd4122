import { createHash } from "node:crypto";
import { readdir, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import type { PolicyEndpoint } from "../../core/trainer-backend.ts";
import type { Logger } from "../../runtime/log.ts";
import { openAdapterPublisher } from "../vllm/adapter-publisher.ts";
import { openVllmEngine } from "../vllm/vllm-engine.ts";
import type { ServedSampler } from "./asample-engine.ts";
import { fetchAdapter } from "./fetch-adapter.ts";
import type { TinkerClient } from "./tinker-client.ts";

export interface PolicyEngines {
  /** Each up to and including `/v1`. */
  readonly urls: readonly string[];
  readonly apiKey?: string | undefined;
  /** Adapters are put here; the engines see it at the same path. */
  readonly adapterDirectory: string;
  readonly checkMs?: number;
}

/** The engines that sample in place of the Tinker server. */
export interface OutsideEngines {
  /** Gives them the server's sampler weights; those that they have are no work. */
  publish(
    sampler: ServedSampler,
    canaryPrompt: readonly number[],
    signal?: AbortSignal,
  ): Promise<void>;
  endpoints(): PolicyEndpoint[];
  close(): Promise<void>;
}

export function openOutsideEngines(
  { urls, apiKey, adapterDirectory, checkMs }: PolicyEngines,
  journalDirectory: string,
  client: TinkerClient,
  log: Logger,
): OutsideEngines {
  // Engines may serve several runs.
  const run = createHash("sha256").update(resolve(journalDirectory)).digest("hex").slice(0, 8);
  const prefix = `outrigger-${run}-`;
  const publisher = openAdapterPublisher({
    engines: urls.map((url) => openVllmEngine({ url, apiKey })),
    prefix,
    log,
    ...(checkMs !== undefined && { checkMs }),
    // An engine may read an adapter again for as long as it has it.
    onLookedAfter: async (loaded) => {
      const old = (await readdir(adapterDirectory).catch((): string[] => [])).filter(
        (name) => name.startsWith(prefix) && !loaded.has(name),
      );
      for (const name of old) await rm(join(adapterDirectory, name), { recursive: true });
    },
  });
  return {
    publish: async ({ path, version }, canaryPrompt, signal) => {
      // Two saved states never have the same path.
      const name = prefix + path.replace("tinker://", "").replace("/sampler_weights/", "-");
      if (publisher.served?.name === name) return;
      const adapter = await fetchAdapter(client, path, adapterDirectory, name, signal);
      await publisher.publish({ name, path: adapter, version }, canaryPrompt, signal);
    },
    endpoints: () => publisher.endpoints(),
    close: () => publisher.close(),
  };
}
